package physical

import (
	"maps"
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

// A given is what a thread has given back inside a function that ends a context, and when
// last.
type given struct {
	Ending
	first, last uint64
}

// maxGone bounds the allocations that a thread's Ending tells.
const maxGone = 1 << 16

// endsContext tells whether a function may end a context.
func endsContext(function string) bool {
	return strings.HasPrefix(function, "cuDevicePrimaryCtxRe") && function != "cuDevicePrimaryCtxRetain" || strings.HasPrefix(function, "cuCtxDestroy")
}

// gives notes that a thread frees an object inside a function that may end a context.
func (l *Ledger) gives(p *process, o *object, e *event.Event, function string) {
	if !endsContext(function) {
		return
	}
	g := p.given[e.TID]
	if g == nil {
		if len(p.given) >= maxThreads {
			maps.DeleteFunc(p.given, func(_ uint32, g *given) bool { return g.last+patience < e.Time })
		}
		if len(p.given) >= maxThreads {
			return
		}
		g = &given{first: e.Time}
		p.given[e.TID] = g
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

// Ends returns what a call of e's thread, which has returned, gave back to the kernel
// driver, if it may end a context. It is told once.
func (l *Ledger) Ends(e *event.Event) Ending {
	p := l.procs[e.Proc]
	if p == nil {
		return Ending{}
	}
	g := p.given[e.TID]
	if g == nil {
		return Ending{}
	}
	delete(p.given, e.TID)
	if g.first < e.Time { // the end of an earlier call was not seen
		return Ending{}
	}
	return g.Ending
}

// Lives tells whether the kernel driver handed out memory for the allocation at an
// address, and has it not back.
func (l *Ledger) Lives(proc event.Process, space event.Space, addr uint64) bool {
	p := l.procs[proc]
	return p != nil && p.backing[address{space, addr}] != nil
}

// Took tells whether e's thread took memory that an allocation may be for.
func (l *Ledger) Took(e *event.Event) bool {
	p := l.procs[e.Proc]
	return p != nil && p.took[e.TID] != nil
}

// Backs says that e, an allocation, succeeded, and that its process's CUDA calls the device
// that it is on ordinal. The memory that its thread took last is for it.
func (l *Ledger) Backs(e *event.Event, ordinal int32) {
	p := l.procs[e.Proc]
	if p == nil {
		return
	}
	m := p.took[e.TID]
	if m == nil {
		return
	}
	delete(p.took, e.TID)
	if m.object.ended {
		return
	}
	l.number(p, m.rows[0].device, ordinal)
	if e.Op == event.OpAlloc && e.Addr != 0 && e.TID != 0 {
		l.unback(p, m)
		m.backs = ledger.Backed{Space: e.Space, Addr: e.Addr, Block: m.size}
		p.backing[address{e.Space, e.Addr}] = m
	}
}

// unback forgets which allocation m is for.
func (l *Ledger) unback(p *process, m *memory) {
	if at := (address{m.backs.Space, m.backs.Addr}); p.backing[at] == m {
		delete(p.backing, at)
	}
}
