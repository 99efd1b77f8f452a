package tensors

import (
	"iter"
	"maps"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
)

// A Piece is memory [From, To) of a process that came, or that ended: a tensor, or
// memory of class device that the driver handed out. A tensor comes after the memory
// that it lies in, and ends before it.
type Piece struct {
	Proc     event.Process
	From, To uint64
	Ended    bool
	// Site is of memory that the driver handed out, nil of a tensor.
	Site *ledger.Site
	// Pool: it is a caching allocator's segment, or a page of one, as far as is known
	// by then: tensors are handed out of memory of its call site.
	Pool bool
	// Device is where it is, as CUDA ordinal inside the process, or event.NoDevice. Of
	// memory that the driver handed out the first tensor in it may tell.
	Device int32
	Said   int32  // of a tensor: the device that its allocator names
	Stack  uint64 // at which it came
	Time   uint64 // of a tensor: when it was made, as event.Event.Time
}

// Expandable tells whether c is a page of an expandable segment.
func (c *Piece) Expandable() bool {
	size := c.To - c.From
	return c.Site != nil && c.Pool && c.Site.Kind == event.KindVMM && (size == smallSegment || size == largeSegment)
}

// Small tells whether c is a segment for requests up to SmallRequest, or a page of one.
func (c *Piece) Small() bool { return c.Pool && c.To-c.From == smallSegment }

func (c Piece) end() Piece {
	c.Ended = true
	return c
}

func (x *extent) piece(proc event.Process) Piece {
	s := x.pool.Site
	return Piece{Proc: proc, From: x.from, To: x.to, Site: s, Pool: x.pool.Handed > 0, Device: x.device, Stack: s.Stack}
}

// end is the end of x. Which segment of a pool ends first says nothing of the others.
func (x *extent) end(proc event.Process) Piece {
	c := x.piece(proc).end()
	c.Pool = x.pool.handed
	return c
}

func (t *tensor) piece(proc event.Process, addr uint64) Piece {
	device := t.device
	if t.first.in != nil {
		device = t.first.in.device
	}
	return Piece{Proc: proc, From: addr, To: addr + t.size, Device: device, Said: t.device, Stack: t.stack, Time: t.time}
}

// Held yields all that is there as what came: the memory of each process that the
// driver handed out by address, and then its tensors in any order.
func (l *Ledger) Held(yield func(Piece) bool) {
	for _, p := range l.procs {
		if !l.held(p, yield) {
			return
		}
	}
}

func (l *Ledger) held(p *process, yield func(Piece) bool) bool {
	more := true
	p.extents.Ascend(func(x *extent) bool {
		more = yield(l.told(x.piece(p.id)))
		return more
	})
	if l.Partial() {
		return more
	}
	for addr, t := range p.tensors {
		if !more {
			break
		}
		more = yield(t.piece(p.id, addr))
	}
	return more
}

// told returns c as it is told: no memory is a Pool where nobody knows what of it is in
// tensors.
func (l *Ledger) told(c Piece) Piece {
	c.Pool = c.Pool && !l.Partial()
	return c
}

// lay tells of c, but of no tensor where not every one is told.
func (l *Ledger) lay(c Piece) {
	if l.Laid != nil && (c.Site != nil || !l.Partial()) {
		l.Laid(l.told(c))
	}
}

// Ends yields the end of each piece that a process has: of the tensors first.
func (l *Ledger) Ends(proc event.Process) iter.Seq[Piece] {
	return func(yield func(Piece) bool) {
		p := l.procs[proc]
		if p == nil {
			return
		}
		if !l.Partial() {
			for _, addr := range p.addresses() {
				t := p.tensors[addr]
				if !yield(t.piece(p.id, addr).end()) {
					return
				}
			}
		}
		p.extents.Ascend(func(x *extent) bool { return yield(l.told(x.end(p.id))) })
	}
}

// addresses returns those of p's tensors in order, so that the same events are followed
// by the same pieces.
func (p *process) addresses() []uint64 { return slices.Sorted(maps.Keys(p.tensors)) }
