package physical

import (
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// A context is created with one object for the local memory of all its threads. When
// a kernel needs more, libcuda frees that and at once asks for a larger one, in the
// same call and often under the same name. What was there stays with the calls that it
// was for, the context's creation at first; only what is more belongs to the call that
// made it grow. As allocated, what was there counts again with those calls: it was
// handed out again. So what a context was created with, and a launch or the loading of
// code frees while the context lives, is taken to be replaced by what its thread gets
// next that is at least as large.

// A freed is the memory that a thread freed last, which may come back larger.
type freed struct {
	memory *memory
	outer  uint16
	time   uint64
}

const (
	// maxThreads bounds the threads in each table of a process.
	maxThreads = 4096
	// patience is how long, in nanoseconds, freed memory may come back larger.
	patience = 1_000_000_000
	// maxRows bounds the calls among which one object's memory is divided.
	maxRows = 16
)

// rememberFreed remembers the memory of an object that a launch or the loading of code
// frees.
func (p *process) rememberFreed(o *object, e *event.Event, function string) {
	m := o.memory
	if m == nil || m.rows[0].kind != event.KindContext || m.shared() {
		return
	}
	switch Cause(function) {
	case event.KindDriver, event.KindCode, event.KindLocal, event.KindGraphExec:
	default:
		return // its purpose is to free
	}
	if room(p.freed, func(f freed) bool { return f.time+patience < e.Time }) {
		p.freed[e.TID] = freed{m, e.Outer, e.Time}
	}
}

// shared returns whether m's own process shares it. What another process reports of it does
// not count.
func (m *memory) shared() bool {
	for x := m.next; x != m; x = x.next {
		if x.object.proc == m.object.proc {
			return true
		}
	}
	return false
}

// grown returns the rows of the memory that a new object's thread freed just before in the
// same call, nil for none.
func (p *process) grown(e *event.Event) []row {
	f, ok := p.freed[e.TID]
	if !ok || e.Kind != event.KindDriver || f.memory.size > e.Size || f.memory.object.parent.name != e.Part {
		return nil
	}
	delete(p.freed, e.TID)
	if f.outer != e.Outer || e.Time < f.time || e.Time-f.time > patience {
		return nil
	}
	return f.memory.rows
}

// growth returns the rows of memory that replaces old and that the call of r brought.
func growth(old []row, r row) []row {
	rows := slices.Clone(old)
	for i := range rows {
		r.size -= rows[i].size
		rows[i].device = r.device
	}
	r.kind = event.KindLocal
	switch last := &rows[len(rows)-1]; {
	case r.size == 0:
	case len(rows) < maxRows:
		rows = append(rows, r)
	default:
		last.size += r.size
	}
	return rows
}
