package probes

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// The guard compares what cuGetProcAddress tells a program with what is
// probed. Programs that do not link libcuda, every static libcudart among them,
// call whatever address they get there: if it is not one with a probe, their
// memory is invisible, and the user must know.

// A text is one executable mapping of a library.
type text struct {
	start, end, base uint64 // base is the file offset at start
	id               fileID
}

func (x text) holds(address uint64) bool { return x.start <= address && address < x.end }

// maxTexts bounds the processes whose libcuda is remembered.
const maxTexts = 1024

// guarded are the functions whose absence would make a number wrong.
var guarded = func() map[string]bool {
	m := map[string]bool{}
	for _, e := range Entries[1:] {
		if e.Level == Driver && e.class == classEmit && e.Op != opProcAddress {
			base, _, _ := strings.Cut(e.Symbol, "_")
			m[base] = true
		}
	}
	return m
}()

func (t *Tracer) guard(p procAddress) {
	if !guarded[p.name] || p.address == 0 || t.opts.API == APIRuntime {
		return
	}
	x, ok := t.texts[p.process] // used by Run's goroutine alone
	if !ok || !x.holds(p.address) {
		if x, ok = findText(int(p.process.PID), p.address); !ok {
			return // gone, or not ours to read: nothing can be said
		}
		if len(t.texts) >= maxTexts {
			clear(t.texts)
		}
		t.texts[p.process] = x
	}
	offset := p.address - x.start + x.base
	t.mu.Lock()
	probed, seen := false, false
	for key, a := range t.attachments {
		if key.id == x.id {
			seen = true
			probed = probed || a.probed[offset]
		}
	}
	t.mu.Unlock()
	if seen && !probed {
		t.warn(fmt.Sprintf("process %d uses a %s that is not probed (cuGetProcAddress returned offset %#x): its memory from there is not counted",
			p.process.PID, p.name, offset))
	}
}

// findText returns pid's executable mapping at address.
func findText(pid int, address uint64) (x text, ok bool) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return text{}, false
	}
	defer f.Close()
	s := bufio.NewScanner(io.LimitReader(f, maxMaps))
	for s.Scan() {
		span, name, exec := parseExecutable(s.Text())
		if !exec {
			continue
		}
		lo, hi, _ := strings.Cut(span, "-")
		x.start, _ = strconv.ParseUint(lo, 16, 64)
		x.end, _ = strconv.ParseUint(hi, 16, 64)
		if !x.holds(address) {
			continue
		}
		if x.base, err = strconv.ParseUint(strings.Fields(s.Text())[2], 16, 64); err != nil {
			return text{}, false
		}
		lib, err := openLibrary(pid, span, name, Driver)
		x.id = lib.id
		return x, err == nil
	}
	return text{}, false
}
