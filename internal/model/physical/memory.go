package physical

import (
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
)

// A memory is one object's part in memory that others may share, in a ring: the
// kernel driver counts it with its owner, and after the owner's end with the next of
// the ring (memCopyConstruct and memDestructCommon of open-gpu-kernel-modules).
type memory struct {
	object     *object
	owner      bool
	size       uint64 // bytes
	next, prev *memory
	// rows are the parts of it by call site, if it is the owner, and their sizes add up to
	// size. Else they are what it would have as the owner.
	rows []row
	// backs is the program's allocation that it was handed out for, if known.
	backs ledger.Backed
}

// A row is a part of memory that a call asked for.
type row struct {
	size, stack uint64
	kind        event.Kind
	outer       uint16
	device      int32
	addr, time  uint64 // in Rows, if it counts there
	bare        bool   // see event.Event.Bare
}

// newMemory returns memory that one call asked for. Nearly all memory is that, and takes one piece
// of Go's heap with its row.
func newMemory(r row) *memory {
	m := &struct {
		memory
		row [1]row
	}{memory{size: r.size}, [1]row{r}}
	m.rows = m.row[:]
	return &m.memory
}

// maxBytes is more than the kernel driver hands out at once (ledger's bound).
const maxBytes = 1 << 57

// kindOf returns the kind of memory that a call brings. It is KindNone for a program's own
// host memory, which counts in the driver layer.
func kindOf(e *event.Event, function string) event.Kind {
	switch c := Cause(function); {
	case e.Kind == event.KindDriver:
		return c
	case e.Kind == event.KindSystem && (c == event.KindBacking || c == event.KindPool):
		return event.KindNone
	}
	return e.Kind
}

// allocate begins the memory of a new object.
func (l *Ledger) allocate(p *process, e *event.Event, function string) {
	kind := kindOf(e, function)
	old, replaces := l.grown(p, e)
	o := l.add(p, e)
	if o == nil || kind == event.KindNone {
		return
	}
	r := row{size: e.Size, stack: e.Stack, kind: kind, outer: e.Outer, device: none, bare: e.Bare}
	if kind.Class() == event.ClassDriver {
		r.device = l.deviceOf(p, o)
	}
	m := newMemory(r)
	m.object, m.owner = o, true
	m.next, m.prev, o.memory = m, m, m
	switch {
	case replaces:
		m.rows = growth(old, r)
	case function == "":
		p.unpark(m, e)
	}
	if kind.Class() == event.ClassDriver {
		p.suspended = false
		p.setLatest(m, e, function)
	}
	l.countMemory(m, e.Time)
}

// countOnly gives Rows a call that brought nothing: it failed, or came late.
func (l *Ledger) countOnly(e *event.Event, r *row) {
	if r.kind == event.KindNone {
		return
	}
	l.addRow(e.Proc, e.Time, e.Result, r)
}

// addRow gives Rows an allocation, and returns its address there.
func (l *Ledger) addRow(id event.Process, at uint64, result int32, r *row) uint64 {
	l.rows++
	l.event = event.Event{
		Op: event.OpAlloc, Kind: r.kind, Proc: id, Time: at, Result: result,
		API: r.outer, Device: r.device, Addr: l.rows, Size: r.size, Stack: r.stack, Bare: r.bare,
	}
	l.Rows.Apply(&l.event)
	return l.rows
}

// countMemory counts memory with an object.
func (l *Ledger) countMemory(m *memory, at uint64) {
	p := l.procs[m.object.proc]
	at = max(at, m.object.time)
	for i := range m.rows {
		r := &m.rows[i]
		if r.size == 0 {
			continue
		}
		r.addr, r.time = l.addRow(p.id, at, event.Success, r), at
		p.addBytes(r, int64(r.size))
	}
	p.changed = max(p.changed, at)
}

// addBytes changes what a process has on the device of r.
func (p *process) addBytes(r *row, bytes int64) {
	if r.device != none {
		p.gpus[r.device].bytes += bytes
	}
}

// share follows a new object that is the memory of another, perhaps of another
// process (CUDA IPC), or of a file.
func (l *Ledger) share(p *process, e *event.Event) {
	l.countRest(e)
	o := l.add(p, e)
	if o == nil {
		return
	}
	s := l.source(e)
	if s == nil || s == o.memory {
		return
	}
	r := row{size: s.size, stack: e.Stack, kind: event.KindShared, outer: e.Outer, device: none, bare: e.Bare}
	if s.rows[0].kind == event.KindSystem {
		r.kind = event.KindSystem
	} else {
		r.device = l.deviceOf(p, o)
	}
	m := newMemory(r)
	m.object, o.memory = o, m
	m.join(s)
	if f := s.fileOwner(); f != nil {
		f.owner, m.owner = false, true
		l.countMemory(m, e.Time)
	}
}

// source returns the memory that e shares, exports or imports, nil if it is not known.
func (l *Ledger) source(e *event.Event) *memory {
	if e.Op == event.OpObjectImport {
		if o := l.exports[e.Addr]; o != nil {
			return o.memory
		}
		l.loss.Add(lossShared, 1)
		return nil
	}
	owner, known := l.Owner(e)
	if o := l.objects[objectID{owner, e.Addr}]; known && o != nil {
		return o.memory
	}
	// An object of a client that was seen made is of a class that is no memory.
	if c := l.objects[objectID{owner, clientOf(e.Addr)}]; !known || c == nil || c.op == event.OpNone {
		l.loss.Add(lossShared, 1)
	}
	return nil
}

// release ends an object's part in its memory. The next object of the ring that has not
// ended with it becomes the owner. With exited, the memory stays in Rows.
func (l *Ledger) release(m *memory, at uint64, exited bool) {
	p := l.procs[m.object.proc]
	p.unback(m)
	if m.owner && !exited && m.object.op != opExport {
		for i := range m.rows {
			if r := &m.rows[i]; r.size > 0 {
				l.event = event.Event{Op: event.OpFree, Proc: p.id, Time: max(at, r.time), Addr: r.addr}
				l.Rows.Apply(&l.event)
				p.addBytes(r, -int64(r.size))
			}
		}
		p.changed = max(p.changed, at)
	}
	if m.owner {
		if next := m.heir(); next != nil {
			next.owner = true
			if next.object.op != opExport {
				l.countMemory(next, at)
				if l.OnInherit != nil {
					l.OnInherit(next.object.proc)
				}
			}
		}
	}
	m.prev.next, m.next.prev = m.next, m.prev
}
