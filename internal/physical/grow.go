package physical

import "github.com/gpumemtrace/gpumemtrace/internal/event"

// libcuda has one object for the local memory of all threads of a context. When a
// kernel needs more it frees that, and at once asks for a larger one, which gets
// its name. What was there stays with the call that it was for, the context's
// creation at first; only what is more belongs to the call that made it grow. So
// the end of an object that a launch or the loading of code frees is held back
// until the thread's next call tells what it was.

// A freed is an object whose end is held back.
type freed struct {
	object *object
	outer  uint16
	time   uint64
}

// maxFreed bounds the threads of a process of which something is remembered.
const maxFreed = 4096

// wait tells whether the end of an object is held back.
func (l *Ledger) wait(p *process, o *object, e *event.Event, function string) bool {
	if o.memory == nil || o.share != nil || len(o.memory.objects) > 1 || len(p.freed) >= maxFreed {
		return false
	}
	switch o.memory.kind {
	case event.KindBacking, event.KindPool, event.KindStream, event.KindEvent, event.KindSystem:
		return false // none that grows
	}
	switch Cause(function) {
	case event.KindDriver, event.KindCode, event.KindLocal, event.KindGraphExec:
	default:
		return false // it is there to free
	}
	p.freed[e.TID] = freed{o, e.Outer, e.Time}
	p.changed = max(p.changed, e.Time)
	l.waiting++
	return true
}

// grow tells whether a new object is one that was freed just before, and grew.
func (l *Ledger) grow(p *process, e *event.Event) bool {
	f, ok := p.freed[e.TID]
	if !ok || f.object.name != e.Handle || f.outer != e.Outer || l.objects[f.object.objectID] != f.object || f.object.memory.size > e.Size {
		return false
	}
	delete(p.freed, e.TID)
	l.waiting--
	o := f.object
	more := e.Size - o.memory.size
	o.time, o.memory.size = e.Time, e.Size
	l.hold(o, e, event.KindLocal, l.deviceOf(p, o, e), more)
	return true
}

// settle ends what a thread's call before freed.
func (l *Ledger) settle(p *process, thread uint32) {
	f, ok := p.freed[thread]
	if !ok {
		return
	}
	delete(p.freed, thread)
	l.waiting--
	if l.objects[f.object.objectID] == f.object {
		l.free(f.object, f.time)
	}
}

// Settle ends what was freed before a time, of CLOCK_MONOTONIC in nanoseconds, and
// did not grow since.
func (l *Ledger) Settle(before uint64) {
	if l.waiting == 0 {
		return
	}
	for _, p := range l.procs {
		for thread, f := range p.freed {
			if f.time < before {
				l.settle(p, thread)
			}
		}
	}
}
