package physical

import (
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
)

// A memory is one object's part in memory that others may share, in a ring: the
// kernel driver counts it with its owner, and when that lets go with the next of
// the ring (memCopyConstruct and memDestructCommon of open-gpu-kernel-modules).
type memory struct {
	object     *object
	owner      bool
	size       uint64 // bytes
	next, prev *memory
	// rows are what the owner holds of it, by call site: their sizes add up to
	// size. Those of another are what it would hold.
	rows []row
	// backs is the allocation of the program's that it was handed out for, if known.
	backs ledger.Backed
}

// A row is a part of memory that a call asked for.
type row struct {
	size, stack uint64
	kind        event.Kind
	outer       uint16
	device      int32
	addr, time  uint64 // in Rows, where it is held
}

// maxBytes is more than the kernel driver hands out at once (ledger's bound).
const maxBytes = 1 << 57

// kindOf returns the kind of memory that a call brings, KindNone for a program's own
// host memory, which the driver layer has.
func kindOf(e *event.Event, function string) event.Kind {
	switch c := Cause(function); {
	case e.Kind == event.KindDriver:
		return c
	case e.Kind == event.KindSystem && (c == event.KindBacking || c == event.KindPool):
		return event.KindNone
	}
	return e.Kind
}

// take begins the memory of a new object.
func (l *Ledger) take(p *process, e *event.Event, function string) {
	kind := kindOf(e, function)
	old := l.grown(p, e)
	o := l.add(p, e)
	if o == nil || kind == event.KindNone {
		return
	}
	r := row{size: e.Size, stack: e.Stack, kind: kind, outer: e.Outer, device: none}
	if kind.Class() == event.ClassDriver {
		r.device = l.deviceOf(p, o)
	}
	m := &memory{object: o, owner: true, size: e.Size}
	m.next, m.prev, o.memory = m, m, m
	m.rows = growth(old, r)
	if kind.Class() == event.ClassDriver {
		p.take(m, e, function)
	}
	l.hold(m, e.Time)
}

// count gives Rows a call that brought nothing: it failed, or came late.
func (l *Ledger) count(e *event.Event, r *row) {
	if r.kind == event.KindNone {
		return
	}
	l.rows++
	l.Rows.Apply(&event.Event{
		Op: event.OpAlloc, Kind: r.kind, Proc: e.Proc, Time: e.Time, Result: e.Result,
		API: r.outer, Device: r.device, Addr: l.rows, Size: r.size, Stack: r.stack,
	})
}

// hold counts memory with an object.
func (l *Ledger) hold(m *memory, at uint64) {
	p := l.procs[m.object.proc]
	at = max(at, m.object.time)
	for i := range m.rows {
		r := &m.rows[i]
		if r.size == 0 {
			continue
		}
		l.rows++
		r.addr, r.time = l.rows, at
		l.Rows.Apply(&event.Event{
			Op: event.OpAlloc, Kind: r.kind, Proc: p.id, Time: at,
			API: r.outer, Device: r.device, Addr: r.addr, Size: r.size, Stack: r.stack,
		})
		p.hold(r, int64(r.size))
	}
	p.changed = max(p.changed, at)
}

// hold changes what a process has on the device of r.
func (p *process) hold(r *row, bytes int64) {
	if r.device != none {
		p.gpus[r.device].held += bytes
	}
}

// share follows a new object that is the memory of another, perhaps of another
// process (CUDA IPC).
func (l *Ledger) share(p *process, e *event.Event) {
	o := l.add(p, e)
	if o == nil {
		return
	}
	owner, known := l.Owner(e)
	var source *object
	if known {
		source = l.objects[objectID{owner, e.Addr}]
	}
	if source == nil || source == o {
		// Of a client that was seen made it is of a class that is no memory.
		if c := l.objects[objectID{owner, clientOf(e.Addr)}]; !known || c == nil || c.op == event.OpNone {
			l.loss.Add(lossShared, 1)
		}
		return
	}
	s := source.memory
	if s == nil {
		return
	}
	m := &memory{object: o, size: s.size, next: s.next, prev: s}
	m.next.prev, s.next, o.memory = m, m, m
	r := row{size: m.size, stack: e.Stack, kind: event.KindShared, outer: e.Outer, device: none}
	if s.rows[0].kind == event.KindSystem {
		r.kind = event.KindSystem
	} else {
		r.device = l.deviceOf(p, o)
	}
	m.rows = []row{r}
}

// release ends an object's part in its memory, which is the next one's that has not
// ended with it.
func (l *Ledger) release(m *memory, at uint64, keep bool) {
	l.unback(l.procs[m.object.proc], m)
	if p := l.procs[m.object.proc]; m.owner && !keep {
		for i := range m.rows {
			if r := &m.rows[i]; r.size > 0 {
				l.Rows.Apply(&event.Event{Op: event.OpFree, Proc: p.id, Time: max(at, r.time), Addr: r.addr})
				p.hold(r, -int64(r.size))
			}
		}
		p.changed = max(p.changed, at)
	}
	if m.owner {
		next := m.next
		for next != m && next.object.ended {
			next = next.next
		}
		if next != m {
			next.owner = true
			l.hold(next, at)
		}
	}
	m.prev.next, m.next.prev = m.next, m.prev
}
