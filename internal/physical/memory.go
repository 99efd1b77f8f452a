package physical

import (
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
)

// A memory is what one object brought and others may share.
type memory struct {
	size    uint64
	kind    event.Kind
	owner   *object   // nil once it let go
	objects []*object // all that refer to it
}

// take begins the memory of a new object.
func (l *Ledger) take(p *process, e *event.Event, function string) {
	kind := e.Kind
	if cause := Cause(function); kind == event.KindDriver {
		kind = cause
	} else if cause == event.KindBacking {
		kind = event.KindNone // of the program's own host memory, which the driver layer has
	}
	o := l.add(p, e)
	if o == nil || kind == event.KindNone {
		return
	}
	device := none
	if kind.Class() == event.ClassDriver {
		device = l.deviceOf(p, o, e)
	}
	delete(p.took, e.TID)
	if l.asking > 0 && device != none && (kind == event.KindBacking || kind == event.KindPool) && len(p.took) < maxFreed {
		p.took[e.TID] = device
	}
	o.memory = &memory{size: e.Size, kind: kind, owner: o, objects: []*object{o}}
	l.hold(o, e, kind, device, e.Size)
}

// hold counts memory with an object, under the call site of e.
func (l *Ledger) hold(o *object, e *event.Event, kind event.Kind, device int32, size uint64) {
	if size == 0 {
		return
	}
	row := l.row(e, kind, device, size)
	l.Rows.Apply(row)
	o.rows = append(o.rows, row.Addr)
	l.change(o.proc, e.Time)
}

// row returns the event of memory that was handed out, as Rows takes it.
func (l *Ledger) row(e *event.Event, kind event.Kind, device int32, size uint64) *event.Event {
	l.rows++
	return &event.Event{
		Op: event.OpAlloc, Kind: kind, Proc: e.Proc, TID: e.TID, Time: e.Time, Result: e.Result,
		API: e.Outer, Device: device, Addr: l.rows, Size: size, Stack: e.Stack,
	}
}

func (l *Ledger) change(proc event.Process, at uint64) {
	if p := l.procs[proc]; p != nil {
		p.changed = max(p.changed, at)
	}
}

// share follows a new object that is the memory of another, perhaps of another
// process (CUDA IPC). The kernel driver counts that with its owner.
func (l *Ledger) share(p *process, e *event.Event) {
	source := l.objects[objectID{e.Proc, e.Addr}]
	if owner, known := l.clients[e.Addr>>32]; source == nil && known {
		source = l.objects[objectID{owner, e.Addr}]
	}
	o := l.add(p, e)
	switch {
	case o == nil:
	case source == nil || source.memory == nil:
		l.loss.Add(lossShared, 1)
	default:
		call := *e
		call.Device = l.deviceOf(p, o, e)
		o.share, o.memory = &call, source.memory
		o.memory.objects = append(o.memory.objects, o)
	}
}

// release ends an object's part in its memory. What the owner let go of and one
// other object alone is left with is that one's.
func (l *Ledger) release(o *object, at uint64) {
	m := o.memory
	for _, row := range o.rows {
		l.Rows.Apply(&event.Event{Op: event.OpFree, Proc: o.proc, Time: at, Addr: row})
	}
	l.change(o.proc, at)
	m.objects = slices.DeleteFunc(m.objects, func(x *object) bool { return x == o })
	if m.owner == o {
		m.owner = nil
	}
	if m.owner == nil && len(m.objects) == 1 && m.objects[0].rows == nil {
		last := m.objects[0]
		call := *last.share
		call.Time = at
		l.hold(last, &call, event.KindShared, call.Device, m.size)
	}
}
