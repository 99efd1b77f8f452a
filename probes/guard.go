package probes

import (
	"fmt"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// The guard compares what cuGetProcAddress tells a program with what is
// probed. Programs that do not link libcuda, every static libcudart among them,
// call whatever address they get there: if it is not one with a probe, their
// memory is invisible, and the user must know.

// A text is one executable mapping of a library.
type text struct {
	proc.Mapping
	id proc.FileID
}

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

// maxGuarding bounds the answers that wait to be compared.
const maxGuarding = 4096

// toGuard has an answer compared. It is for the reader of events: it waits for
// nothing.
func (t *Tracer) toGuard(p procAddress) {
	if !guarded[p.name] || p.address == 0 || t.opts.API == APIRuntime {
		return
	}
	select {
	case t.guarding <- p:
	default:
		t.loss.Add(lossNotCompared, 1)
	}
}

// guard compares answers until stop is closed.
func (t *Tracer) guard(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case p := <-t.guarding:
			t.compare(p)
		}
	}
}

func (t *Tracer) compare(p procAddress) {
	x, ok := t.texts[p.process]
	if !ok || !x.Holds(p.address) {
		if x, ok = findText(int(p.process.PID), p.address); !ok {
			return // gone, or not ours to read: nothing can be said
		}
		if len(t.texts) >= maxTexts {
			clear(t.texts)
		}
		t.texts[p.process] = x
	}
	offset := p.address - x.Start + x.Offset
	t.mu.Lock()
	probed, seen := false, false
	for key, a := range t.libs.table {
		if key.id == x.id {
			seen = true
			probed = probed || a.probed[offset]
		}
	}
	t.mu.Unlock()
	if uid, err := userOf(int(p.process.PID)); seen && !probed && err == nil {
		t.warnOf(uid, fmt.Sprintf("process %d uses a %s that is not probed (cuGetProcAddress returned offset %#x): its memory from there is not counted",
			p.process.PID, p.name, offset))
	}
}

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
