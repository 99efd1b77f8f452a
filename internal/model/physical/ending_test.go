package physical

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
)

// What a call gives back that may end a context is told once, with the allocations that
// it was for.
func TestEnds(t *testing.T) {
	for _, f := range []string{"cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxRelease_v2", "cuCtxDestroy_v2"} {
		l := run(makeMemory(4, first, 2*mib, in(inAlloc)))
		l.LinkAllocation(allocation(5, 0x1000), 0)
		apply(l, makeMemory(6, second, mib, in(inLaunch)))
		if !l.IsBacked(proc, event.SpacePointer, 0x1000) || l.IsBacked(other, event.SpacePointer, 0x1000) || l.IsBacked(proc, event.SpaceArray, 0x1000) {
			t.Error("what lives is not told")
		}
		l.Apply(end(8, first), f)
		l.Apply(end(9, second), f)
		l.Apply(end(10, client>>32<<32|0x99), f) // of before the trace
		if l.IsBacked(proc, event.SpacePointer, 0x1000) {
			t.Error("it lives on")
		}
		call := ev(7, event.OpPrimaryReset)
		want := Ending{Freed: 3, Gone: []ledger.Backed{{Addr: 0x1000, Block: 2 * mib}}}
		if d := cmp.Diff(want, l.ContextEnd(call)); d != "" {
			t.Errorf("%s (-want +got):\n%s", f, d)
		}
		if d := cmp.Diff(Ending{}, l.ContextEnd(call)); d != "" {
			t.Errorf("%s, again (-want +got):\n%s", f, d)
		}
	}
}

// Nothing is told of memory that something else gave back, nor of what ended before the
// call began.
func TestEndsNothing(t *testing.T) {
	for _, f := range []string{"", "cuMemFree_v2", "cuDevicePrimaryCtxRetain"} {
		l := run(makeMemory(4, first, 2*mib, in(inAlloc)))
		l.LinkAllocation(allocation(5, 0x1000), 0)
		l.Apply(end(8, first), f)
		if got := l.ContextEnd(ev(7, event.OpPrimaryReset)); got.Freed != 0 || got.Gone != nil {
			t.Errorf("%q: %+v", f, got)
		}
	}
	l := run(makeMemory(4, first, 2*mib, in(inAlloc)))
	l.LinkAllocation(allocation(5, 0x1000), 0)
	l.Apply(end(8, first), "cuCtxDestroy_v2")
	if got := l.ContextEnd(ev(9, event.OpContextDestroy, on(2))); got.Freed != 0 {
		t.Errorf("of another thread: %+v", got)
	}
	if got := l.ContextEnd(ev(9, event.OpContextDestroy)); got.Freed != 0 {
		t.Errorf("of before: %+v", got)
	}
}

// An address that comes again is the newest allocation's.
func TestBacksAgain(t *testing.T) {
	l := run(makeMemory(4, first, 2*mib, in(inAlloc)))
	l.LinkAllocation(allocation(5, 0x1000), 0)
	apply(l, makeMemory(6, second, 4*mib, in(inAlloc)))
	l.LinkAllocation(allocation(7, 0x1000), 0)
	apply(l, end(8, first))
	if !l.IsBacked(proc, event.SpacePointer, 0x1000) {
		t.Error("the older memory's end ended the newer one's")
	}
	apply(l, end(9, second))
	if l.IsBacked(proc, event.SpacePointer, 0x1000) {
		t.Error("it lives on")
	}
}
