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
// next that is at least as large. Of an object from before the trace nothing is known but its
// name. So what replaces it must have that, be large, and lie on a device that was opened before the
// trace, too. It is local memory as a whole.

// A freed is the memory that a thread freed last, which may come back larger.
type freed struct {
	name   uint64 // of its object
	rows   []row  // nil for an object that was not seen made
	size   uint64 // of all rows
	parent uint64 // name of the object's parent
	outer  uint16
	time   uint64
}

const (
	// maxThreads bounds the threads in each table of a process.
	maxThreads = 4096
	// patience is how long, in nanoseconds, freed memory may come back larger.
	patience = 1_000_000_000
	// leastLocal is less than the local memory of a context on any GPU of today, in bytes.
	leastLocal = 16 << 20
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
	p.addFreed(freed{o.name, m.rows, m.size, o.parent.name, e.Outer, e.Time}, e.TID, function)
}

// rememberUnseen remembers an object that was not seen made and that a launch or the loading of code
// frees.
func (p *process) rememberUnseen(e *event.Event, function string) {
	p.addFreed(freed{name: e.Handle, outer: e.Outer, time: e.Time}, e.TID, function)
}

func (p *process) addFreed(f freed, thread uint32, function string) {
	switch Cause(function) {
	case event.KindDriver, event.KindCode, event.KindLocal, event.KindGraphExec:
	default:
		return // its purpose is to free
	}
	if room(p.freed, func(old freed) bool { return old.time+patience < f.time }) {
		p.freed[thread] = f
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

// grown returns whether a new object replaces memory that its thread freed just before in the same
// call, and the rows of that, as far as they are known.
func (l *Ledger) grown(p *process, e *event.Event) (rows []row, replaces bool) {
	f, ok := p.freed[e.TID]
	below := l.objects[objectID{e.Proc, e.Part}]
	switch {
	case !ok || e.Kind != event.KindDriver:
		return nil, false
	case f.rows == nil && (f.name != e.Handle || e.Size < leastLocal || below != nil && below.op != event.OpNone):
		return nil, false
	case f.rows != nil && (f.size > e.Size || f.parent != e.Part):
		return nil, false
	}
	delete(p.freed, e.TID)
	if f.outer != e.Outer || e.Time < f.time || e.Time-f.time > patience {
		return nil, false
	}
	return f.rows, true
}

// growth returns the rows of memory that replaces old and that the call of r brought.
func growth(old []row, r row) []row {
	rows := slices.Clone(old)
	for i := range rows {
		r.size -= rows[i].size
		rows[i].device = r.device
	}
	r.kind = event.KindLocal
	switch {
	case r.size == 0:
	case len(rows) < maxRows:
		rows = append(rows, r)
	default:
		rows[len(rows)-1].size += r.size
	}
	return rows
}
