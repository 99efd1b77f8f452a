package main

import (
	"os"
	"strings"
	"testing"
	"time"
)

// What takes less than a second says nothing. After that one line says how far it is,
// no more often than one can read, and at the end nothing of it is left.
func TestProgress(t *testing.T) {
	var b strings.Builder
	now := time.Unix(1000, 0)
	p := &progress{w: &b, what: "converting run.gmt", width: 31, now: func() time.Time { return now }, next: now.Add(progressAfter)}
	p.show(0.1)
	p.clear()
	if b.String() != "" {
		t.Errorf("at once: %q", b.String())
	}
	now = now.Add(time.Second)
	p.show(0.25)
	p.show(0.26)
	now = now.Add(progressEvery)
	p.show(1)
	p.clear()
	p.clear()
	want := "\rgpumemtrace:  25% converting r" + "\rgpumemtrace: 100% converting r" + "\r" + strings.Repeat(" ", 30) + "\r"
	if b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}

// Only a terminal gets a line, and nobody who wants none. Names cannot move its cursor.
func TestProgressOnTerminal(t *testing.T) {
	user, program := terminal(t, 200)
	pipe, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	defer w.Close()
	for _, c := range []struct {
		f      *os.File
		wanted bool
		says   bool
	}{{program, true, true}, {program, false, false}, {w, true, false}} {
		p := newProgress(c.f, c.wanted, "reading \x1b[2Jx")
		p.next = time.Time{}
		p.show(0.5)
		if says := p.shown > 0; says != c.says {
			t.Errorf("%+v: it says something: %t", c, says)
		}
		p.clear()
	}
	program.Close()
	out := make([]byte, 4096)
	n, err := user.Read(out)
	if err != nil || strings.Contains(string(out[:n]), "\x1b") || !strings.Contains(string(out[:n]), "50% reading") {
		t.Errorf("%q, %v", out[:n], err)
	}
}
