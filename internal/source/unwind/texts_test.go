package unwind

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// text returns what the kernel side would keep of the fake memory's code object.
func (m *fakeMemory) text(l *codeLayout) *codeText {
	t := &codeText{}
	number := func(at uint16) uint64 {
		return binary.NativeEndian.Uint64(m.pages[codeAt/page][codeAt%page+uint64(at):])
	}
	t.First = int32(number(l.first))
	if l.traceable != 0 {
		t.Traceable = int32(number(l.traceable))
	}
	copy(t.Name[:], m.bytes(number(l.name), maxTextName))
	copy(t.File[:], m.bytes(number(l.file), maxTextFile))
	copy(t.Lines[:], m.bytes(number(l.table), maxTextLines))
	return t
}

// Code that has gone has the names that were kept of it, and other code does not get them.
func TestKeptNames(t *testing.T) {
	eachLayout(t, func(t *testing.T, l *codeLayout) {
		m, f := newFake(l)
		text := m.text(l)
		kept := func(id codeID) (*codeText, bool) { return text, id == f.codeID }
		m.put64(codeAt, 0)
		want := Frame{Kind: Python, Function: "f", File: "/f.py", Line: 8}
		if got := nameFrames(m, l, kept, []pythonFrame{f})[0]; got != (namedFrame{Frame: want}) {
			t.Errorf("got %+v, want %+v", got, want)
		}
		other := f
		other.check++
		if got := nameFrames(m, l, kept, []pythonFrame{other})[0]; got.Frame != unnamed(errCodeReplaced) {
			t.Errorf("other code: %+v", got)
		}
	})
}

// What is longer than what is kept is cut: a name says so, and an instruction behind the
// part of the line table that is there has no line.
func TestKeptNamesAreCut(t *testing.T) {
	eachLayout(t, func(t *testing.T, l *codeLayout) {
		m, f := newFake(l)
		long := strings.Repeat("n", 2*maxTextName)
		m.putText(l, nameAt, ascii, []byte(long))
		entry := []byte{2, 1} // two bytes of code, a line each
		if l.traceable != 0 {
			entry = []byte{0xd8} // a unit, one line on (kind 11)
		}
		m.putTable(slices.Concat(m.table(l), []byte(strings.Repeat(string(entry), maxTextLines))))
		text := m.text(l)
		c, ok := text.code(l)
		if !ok || c.name != long[:maxTextName-int(l.ascii)]+"..." {
			t.Fatalf("%v, %q", ok, c.name)
		}
		whole := m.table(l)
		for _, at := range []int32{3, 100, 5000, 100000} {
			f.at = at
			exact := c
			exact.lines.Bytes, exact.lines.Cut = whole, false
			got, want := c.frame(l, int(at)), exact.frame(l, int(at))
			if got.Line != 0 && got.Line != want.Line || at < 200 && got.Line == 0 || at > 4000 && got.Line != 0 || got.Function == "" {
				t.Errorf("at %d: %+v, want %+v", at, got, want)
			}
		}
		m.putText(l, nameAt, 0, nil)
		if _, ok := m.text(l).code(l); ok {
			t.Error("a name of no known form")
		}
	})
}

// table returns the line table.
func (m *fakeMemory) table(l *codeLayout) []byte {
	size := binary.NativeEndian.Uint64(m.bytes(tableAt+objectSize, 8))
	return m.bytes(tableAt+bytesHead, size)
}

// Code that exec ran once is named when it is gone, also where its stack led through a
// library that was just loaded.
func TestKeptNamesOfExec(t *testing.T) {
	const files = 50
	plugin := buildPlugin(t)
	for _, python := range pythonsToCompare(t) {
		t.Run(python.name, func(t *testing.T) {
			p := startTarget(t, python.path, "testdata/execs.py", plugin)
			c := newCapture(t, Options{}, p.pid)
			c.attach(buildLibrary(t), symbol, 1)
			c.hold.Lock()
			p.ask("files", files)
			p.ask("load", 1)
			c.hold.Unlock()
			c.detach(files + 1)
			if s := c.stats(); s.Copied != 1 {
				t.Error("want one copied stack")
			}
			seen := make(map[string]bool)
			for id := range c.counts {
				s := c.stacks[id]
				frames := pythonFrames(s.Frames)
				if s.Err != nil || len(frames) == 0 || slices.Contains(frames, freedFrame) {
					t.Fatal(s.Err, frames)
				}
				seen[frames[0]] = true
			}
			for i := range files {
				if want := fmt.Sprintf("<module> <file %d>:%d", i, i+1); !seen[want] {
					t.Errorf("no stack of %s", want)
				}
			}
			if !seen["<module> <loader>:3"] {
				t.Errorf("no stack of the loader: %v", seen)
			}
		})
	}
}

// FuzzKeptNames: a traced process decides what is kept of its code.
func FuzzKeptNames(f *testing.F) {
	f.Add(uint8(12), []byte{}, int32(3))
	f.Fuzz(func(t *testing.T, minor uint8, changes []byte, at int32) {
		l, ok := codeLayouts[0x0300|uint16(minor)]
		if !ok {
			return
		}
		m, _ := newFake(&l)
		text := m.text(&l)
		for c := changes; len(c) >= 3; c = c[3:] {
			to := [][]byte{text.Name[:], text.File[:], text.Lines[:]}[c[0]%3]
			to[c[1]] = c[2]
		}
		got := namedFrame{Frame: unnamed(errors.New("no form"))}
		if c, ok := text.code(&l); ok {
			got = c.frame(&l, int(at))
		}
		if !got.hidden && ((got.Function == "") == (got.Reason == "") || got.Line < 0) {
			t.Errorf("%+v", got)
		}
	})
}
