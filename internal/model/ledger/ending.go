package ledger

import (
	"cmp"
	"math"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// Evidence is what the kernel driver's calls show of a call of CUDA that may end a
// context.
type Evidence struct {
	// Freed: the call gave memory back to the kernel driver.
	Freed bool
	// Sole: the process uses one GPU, and the call is about that.
	Sole bool
	// Gone are allocations whose memory the call gave back.
	Gone []Backed
	// Lives returns whether the kernel driver's memory for the allocation at an address is
	// known and not freed.
	Lives func(space event.Space, addr uint64) bool
}

// A Backed is an allocation that the kernel driver handed out memory for. In its Block of
// so many bytes others may lie, and after it.
type Backed struct {
	Space event.Space
	Addr  uint64
	Block uint64
}

// blockAlign is what addresses of libcuda's blocks are multiples of.
const blockAlign = 2 << 20

// A fate is what happened to the memory of the allocations in a context, when a call ended
// a context that it does not name.
type fate struct {
	gone, live bool // memory of some went, and of some did not
}

// ended returns whether all allocations ended, as far as is known.
func (f fate) ended() bool { return f.gone && !f.live }

// A contextEnd is the end of a context, with the evidence of it.
type contextEnd struct {
	gone  []Backed        // live allocations whose memory went
	fates map[uint32]fate // by context
	sole  bool
}

// decides returns whether the allocations in a context ended.
func (x *contextEnd) decides(ctx uint32) bool {
	f := x.fates[ctx]
	return f.ended() || x.sole && !f.live
}

// contextEnd returns what the evidence shows of e, which ends a context.
func (p *process) contextEnd(e *event.Event) *contextEnd {
	ev := p.l.evidence
	if ev == nil || !ev.Freed {
		return &contextEnd{}
	}
	x := &contextEnd{sole: ev.Sole, fates: map[uint32]fate{}}
	went := blocksOf(ev.Gone)
	for space := range p.allocs.live {
		for addr, r := range p.allocs.live[space].all {
			if r.time > e.Time || r.ctx == ctxNone {
				continue
			}
			f := x.fates[r.ctx]
			switch at := (Backed{Space: event.Space(space), Addr: addr}); {
			case ev.Lives(at.Space, addr):
				f.live = true
			case went.have(at):
				f.gone = true
				x.gone = append(x.gone, at)
			}
			x.fates[r.ctx] = f
		}
	}
	return x
}

// endGone ends the allocations whose memory went.
func (t *allocTable) endGone(x *contextEnd) {
	for _, at := range x.gone {
		r, _ := t.live[at.Space].get(at.Addr)
		t.end(at.Space, at.Addr, &r)
	}
}

// blocks are memory that went, in order of space and address.
type blocks []Backed

func blocksOf(gone []Backed) blocks {
	out := slices.Clone(gone)
	for i := range out {
		if b := &out[i]; b.Space == event.SpacePointer {
			within := b.Addr % blockAlign
			b.Addr -= within
			b.Block = max(b.Block, within+1)
		} else {
			b.Block = 1 // a handle
		}
	}
	sorting.Stable(out, compareBacked)
	return out
}

func compareBacked(a, b Backed) int {
	return cmp.Or(cmp.Compare(a.Space, b.Space), cmp.Compare(a.Addr, b.Addr), cmp.Compare(a.Block, b.Block))
}

// have returns whether an allocation lay in one of them.
func (b blocks) have(at Backed) bool {
	at.Block = math.MaxUint64
	i, _ := slices.BinarySearchFunc(b, at, compareBacked)
	i-- // the largest at the last address that is not beyond
	return i >= 0 && b[i].Space == at.Space && at.Addr-b[i].Addr < b[i].Block
}
