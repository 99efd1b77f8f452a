package physical

import (
	"maps"
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

// A freed is memory that a thread gave back last and that may come back larger.
type freed struct {
	memory *memory
	outer  uint16
	time   uint64
}

const (
	// maxThreads bounds the threads of a process of which something is remembered.
	maxThreads = 4096
	// patience is how long, in nanoseconds, memory that was given back may come
	// back larger.
	patience = 1_000_000_000
	// maxRows bounds the calls that one object's memory is put down to.
	maxRows = 16
)

// remember keeps what an object held that a launch or the loading of code frees.
func (l *Ledger) remember(p *process, o *object, e *event.Event, function string) {
	m := o.memory
	if m == nil || m.rows[0].kind != event.KindContext || m.shared() {
		return
	}
	switch Cause(function) {
	case event.KindDriver, event.KindCode, event.KindLocal, event.KindGraphExec:
	default:
		return // it is there to free
	}
	if len(p.freed) >= maxThreads {
		maps.DeleteFunc(p.freed, func(_ uint32, f freed) bool { return f.time+patience < e.Time })
	}
	if len(p.freed) < maxThreads {
		p.freed[e.TID] = freed{m, e.Outer, e.Time}
	}
}

// shared tells whether m's own process shares it. What another one says of it does not
// count.
func (m *memory) shared() bool {
	for x := m.next; x != m; x = x.next {
		if x.object.proc == m.object.proc {
			return true
		}
	}
	return false
}

// grown returns what a new object's memory held before, if its thread freed it just
// before in the same call, nil if not.
func (l *Ledger) grown(p *process, e *event.Event) []row {
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

// growth returns the rows of memory of which old was there before, and r is the call
// that brought it.
func growth(old []row, r row) []row {
	if old == nil {
		return []row{r}
	}
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
