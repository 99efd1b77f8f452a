package physical

import (
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
)

// An address is where an allocation is.
type address struct {
	space event.Space
	addr  uint64
}

// An Ending is what a call that may end a context gave back to the kernel driver.
type Ending struct {
	Freed int // objects
	// Gone are allocations whose memory was among them.
	Gone []ledger.Backed
}

// An ending is what a thread has given back inside a function that ends a context, and
// when.
type ending struct {
	Ending
	first, last uint64
}

// maxGone bounds the allocations of a thread's Ending.
const maxGone = 1 << 16

// endsContext returns whether a function may end a context.
func endsContext(function string) bool {
	return strings.HasPrefix(function, "cuDevicePrimaryCtxRe") && function != "cuDevicePrimaryCtxRetain" || strings.HasPrefix(function, "cuCtxDestroy") || function == "cuCtxDetach"
}

// noteEnding notes that a thread frees an object inside a function that may end a context.
func (l *Ledger) noteEnding(p *process, o *object, e *event.Event, function string) {
	if !endsContext(function) {
		return
	}
	g := p.endings[e.TID]
	if g == nil {
		if !room(p.endings, func(g *ending) bool { return g.last+patience < e.Time }) {
			return
		}
		g = &ending{first: e.Time}
		p.endings[e.TID] = g
	}
	g.Freed++
	g.last = max(g.last, e.Time)
	if o == nil {
		return // of before the trace
	}
	for x := o; x != nil; x = x.after(o) {
		if m := x.memory; m != nil && m.backs.Addr != 0 && len(g.Gone) < maxGone {
			g.Gone = append(g.Gone, m.backs)
		}
	}
}

// ContextEnd returns what a call of e's thread, which has returned, gave back to the kernel
// driver, if it may end a context. A second call returns nothing.
func (l *Ledger) ContextEnd(e *event.Event) Ending {
	p := l.lookup(e.Proc)
	g := p.endings[e.TID]
	delete(p.endings, e.TID)
	if g == nil || g.first < e.Time { // the end of an earlier call was not seen
		return Ending{}
	}
	return g.Ending
}

// IsBacked returns whether the kernel driver handed out memory for the allocation at an
// address, and it was not freed.
func (l *Ledger) IsBacked(proc event.Process, space event.Space, addr uint64) bool {
	return l.lookup(proc).backing[address{space, addr}] != nil
}

// HasUnlinkedMemory returns whether e's thread was handed out memory that an allocation may be for.
func (l *Ledger) HasUnlinkedMemory(e *event.Event) bool { return l.lookup(e.Proc).latest[e.TID] != nil }

// LinkAllocation applies that e, an allocation, succeeded, on the device that its process's CUDA
// calls ordinal. The latest memory of its thread is for it.
func (l *Ledger) LinkAllocation(e *event.Event, ordinal int32) {
	p := l.lookup(e.Proc)
	m := p.latest[e.TID]
	delete(p.latest, e.TID)
	if m == nil || m.object.ended {
		return
	}
	p.setOrdinal(m.rows[0].device, ordinal)
	if e.Op == event.OpAlloc && e.Addr != 0 && e.TID != 0 {
		p.unback(m)
		m.backs = ledger.Backed{Space: e.Space, Addr: e.Addr, Block: m.size}
		p.backing[address{e.Space, e.Addr}] = m
	}
}

// DropUnlinked applies that the call of e's thread has returned without an allocation: what it
// took is for none.
func (l *Ledger) DropUnlinked(e *event.Event) { delete(l.lookup(e.Proc).latest, e.TID) }

// longestCall is how long a call is waited for that took memory, in nanoseconds: its end may
// be lost.
const longestCall = 10_000_000_000

// UnderWay calls yield with the memory, by call site in Rows, that proc's calls took for
// allocations and that have not returned at a time.
func (l *Ledger) UnderWay(proc event.Process, now uint64, yield func(at ledger.SiteKey, bytes int64)) {
	for _, m := range l.lookup(proc).latest {
		if m.object.ended || now-min(now, m.object.time) > longestCall {
			continue
		}
		for _, r := range m.rows {
			if r.kind == event.KindBacking {
				yield(ledger.SiteKey{Proc: proc, Stack: r.stack, API: r.outer, Kind: r.kind, Device: r.device}, int64(r.size))
			}
		}
	}
}

// unback forgets which allocation m is for.
func (p *process) unback(m *memory) {
	if at := (address{m.backs.Space, m.backs.Addr}); p.backing[at] == m {
		delete(p.backing, at)
	}
}
