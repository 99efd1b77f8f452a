package probes

import (
	"fmt"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// A guard compares the answers of cuGetProcAddress with the probes. Programs that do not link
// libcuda, such as each one with a static libcudart, call the address that they get there. If it
// has no probe, their memory is invisible, and the user must know.
type guard struct {
	libs    *libraries
	answers chan procAddress
	texts   map[event.Process]text // of run's goroutine
}

// A text is one executable mapping of a library.
type text struct {
	proc.Mapping
	id proc.FileID
}

const (
	// maxTexts bounds the processes whose libcuda is remembered.
	maxTexts = 1024
	// maxGuarding bounds the answers that wait.
	maxGuarding = 4096
)

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

func newGuard(l *libraries) *guard {
	return &guard{l, make(chan procAddress, maxGuarding), map[event.Process]text{}}
}

// add queues an answer. The reader of events calls it: it does not wait.
func (g *guard) add(p procAddress) {
	if !guarded[p.name] || p.address == 0 {
		return
	}
	select {
	case g.answers <- p:
	default:
		g.libs.loss.Add(lossNotCompared, 1)
	}
}

// run compares answers until stop is closed.
func (g *guard) run(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case p := <-g.answers:
			g.compare(p)
		}
	}
}

func (g *guard) compare(p procAddress) {
	x, ok := g.texts[p.process]
	if !ok || !x.Holds(p.address) {
		if x, ok = findText(int(p.process.PID), p.address); !ok {
			return // the process has ended, or cannot be read
		}
		if len(g.texts) >= maxTexts {
			clear(g.texts)
		}
		g.texts[p.process] = x
	}
	offset := p.address - x.Start + x.Offset
	file, probed := g.libs.probedAt(x.id, offset)
	if uid, err := userOf(int(p.process.PID)); file && !probed && err == nil {
		g.libs.warnings.addFor(uid, fmt.Sprintf("process %d uses a %s that is not probed (cuGetProcAddress returned offset %#x): its memory from there is not counted",
			p.process.PID, p.name, offset))
	}
}

// findText returns the mapping of a process at an address.
func findText(pid int, address uint64) (x text, ok bool) {
	for m, err := range proc.Mappings(pid) {
		if err != nil || !m.Holds(address) {
			continue
		}
		f, err := proc.OpenMapped(pid, &m)
		if err != nil {
			return text{}, false
		}
		defer f.Close()
		return text{m, f.ID}, true
	}
	return text{}, false
}
