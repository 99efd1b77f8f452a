package tensors

import (
	"iter"
	"maps"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
)

// A Piece is memory [From, To) of a process that began or ended: a tensor, or memory of
// class device that the driver handed out. A tensor begins after the memory that it lies
// in, and ends before it.
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
	// memory that the driver handed out, it may be the device of the first tensor in it.
	Device          int32
	AllocatorDevice int32  // of a tensor: the device that its allocator names
	Stack           uint64 // at which it began
	Time            uint64 // of a tensor: when it was made, as event.Event.Time
}

// Expandable returns whether c is a page of an expandable segment.
func (c *Piece) Expandable() bool {
	size := c.To - c.From
	return c.Site != nil && c.Pool && c.Site.Kind == event.KindVMM && (size == smallSegment || size == largeSegment)
}

// Small returns whether c is a segment for small requests (1 MiB at most), or a page of one.
func (c *Piece) Small() bool { return c.Pool && c.To-c.From == smallSegment }

func (c Piece) end() Piece {
	c.Ended = true
	return c
}

func (x *extent) piece(proc event.Process) Piece {
	s := x.pool.Site
	return Piece{Proc: proc, From: x.from, To: x.to, Site: s, Pool: x.pool.HandedExtents > 0, Device: x.device, Stack: s.Stack}
}

// end returns the end of x. Which segment of a pool ends first says nothing of the others.
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
	return Piece{Proc: proc, From: addr, To: addr + t.size, Device: device, AllocatorDevice: t.device, Stack: t.stack, Time: t.time}
}

// Pieces yields all that is there as it began: the memory of each process that the
// driver handed out by address, and then its tensors in any order.
func (l *Ledger) Pieces(yield func(Piece) bool) {
	for _, p := range l.procs {
		if !p.extentPieces((*extent).piece, yield) {
			return
		}
		for addr, t := range p.tensors {
			if !yield(t.piece(p.id, addr)) {
				return
			}
		}
	}
}

// extentPieces yields a piece of each extent, by address, and returns whether yield wanted
// all.
func (p *process) extentPieces(piece func(*extent, event.Process) Piece, yield func(Piece) bool) bool {
	more := true
	p.memory.extents.Ascend(func(x *extent) bool {
		more = yield(piece(x, p.id))
		return more
	})
	return more
}

// TakePieces yields each Piece that came to lie somewhere or ended since it was called last, in
// order. Whoever applies events calls it after each. The end of a process ends no piece: see
// PieceEnds.
func (l *Ledger) TakePieces(yield func(*Piece) bool) { l.pieces.Take(yield) }

// PieceEnds yields the end of each piece that a process has: of the tensors first.
func (l *Ledger) PieceEnds(proc event.Process) iter.Seq[Piece] {
	return func(yield func(Piece) bool) {
		p := l.procs[proc]
		if p == nil {
			return
		}
		for _, addr := range p.addresses() {
			t := p.tensors[addr]
			if !yield(t.piece(p.id, addr).end()) {
				return
			}
		}
		p.extentPieces((*extent).end, yield)
	}
}

// addresses returns those of p's tensors in order, so that the same events are followed
// by the same pieces.
func (p *process) addresses() []uint64 { return slices.Sorted(maps.Keys(p.tensors)) }
