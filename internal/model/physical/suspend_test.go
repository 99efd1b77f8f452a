package physical

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// What a checkpoint of a process frees, a restore makes again: on an H200 (driver 580) by a thread
// that is in no function of CUDA's, below a client with a new number, under the numbers and with the
// sizes that it had.
func TestSuspend(t *testing.T) {
	const thread, page = 60, 0x420000000
	held3 := held{event.KindContext: 610, event.KindBacking: 256, event.KindCode: 2}
	l := run(makeMemory(10, first, 610*mib), makeMemory(11, second, 256*mib, in(inAlloc), stack(2)))
	l.LinkAllocation(allocation(12, page), 0)
	apply(l, makeMemory(13, second+1, 2*mib, in(inLoad), stack(3)))
	if d := cmp.Diff(held3, byKind(l, proc)); d != "" || l.Suspended(proc) {
		t.Fatalf("before, suspended %t (-want +got):\n%s", l.Suspended(proc), d)
	}
	again := func(at, object, size uint64, options ...opt) *event.Event {
		return makeMemory(at, client2>>32<<32|object&0xffffffff, size, append([]opt{in(inNone), on(thread), stack(9)}, options...)...)
	}
	for round := range uint64(3) {
		at := 100 * (round + 1)
		old := uint64(client)
		if round > 0 {
			old = client2
		}
		apply(l, end(at, second+1, in(inNone), on(thread)), end(at+1, old, in(inNone), on(thread)))
		if round > 0 {
			apply(l, end(at, client2>>32<<32|(second+1)&0xffffffff, in(inNone), on(thread)))
		}
		if total(l, proc) != 0 || !l.Suspended(proc) || l.IsBacked(proc, event.SpacePointer, page) {
			t.Fatalf("suspended: %d bytes, %t", total(l, proc), l.Suspended(proc))
		}
		apply(l, makeClient(at+2, client2, 9, in(inNone), on(thread)), makeDevice(at+3, device2, 0, in(inNone), on(thread)),
			again(at+4, second, 256*mib), again(at+5, first, 610*mib), again(at+6, second+1, 2*mib))
		if d := cmp.Diff(held3, byKind(l, proc)); d != "" || l.Suspended(proc) || !l.IsBacked(proc, event.SpacePointer, page) {
			t.Errorf("restored, suspended %t (-want +got):\n%s", l.Suspended(proc), d)
		}
		total(l, proc)
		for s := range l.Rows.Sites {
			if s.InuseBytes != 0 && s.Stack == 9 {
				t.Errorf("%v has the stack of the restore", s.SiteKey)
			}
		}
	}
	// What is of another size or number, or made in a function, is new.
	apply(l, end(900, client2, in(inNone)), makeClient(901, client2, 9, in(inNone)), makeDevice(902, device2, 0),
		again(903, first, 611*mib), again(904, second+7, 256*mib), again(905, second, 256*mib, in(inLoad)))
	if d := cmp.Diff(held{event.KindDriver: 611 + 256, event.KindCode: 256}, byKind(l, proc)); d != "" {
		t.Errorf("other memory (-want +got):\n%s", d)
	}
	apply(l, ev(1000, event.OpExit))
	if l.Suspended(proc) {
		t.Error("an ended process is suspended")
	}
}

// A client that ends in a function of CUDA's ends for good, and so does one of a process that has
// memory left.
func TestNotSuspended(t *testing.T) {
	l := run(makeMemory(10, first, mib), end(11, client))
	if apply(l, makeClient(12, client2, 9), makeDevice(13, device2, 0), makeMemory(14, client2>>32<<32|first&0xffffffff, mib, in(inNone))); l.Suspended(proc) || byKind(l, proc)[event.KindDriver] != 1 {
		t.Errorf("after a call that ends the context: %v", byKind(l, proc))
	}
	l = run(makeMemory(10, first, mib), makeClient(11, client2, 9), makeDevice(12, device2, 0), makeMemory(13, shared2, mib), end(14, client2, in(inNone)))
	if l.Suspended(proc) {
		t.Error("a process that has memory on a GPU is suspended")
	}
}

// What is remembered of a process is bounded.
func TestParkedBound(t *testing.T) {
	l := run()
	for i := range uint64(maxParked + 10) {
		h := client>>32<<32 | 0x100000 + i
		apply(l, makeMemory(10+2*i, h, mib), end(11+2*i, h, in(inNone)))
	}
	if got, lost := len(l.procs[proc].parked), lossOf(l, "driver_parked_full"); got != maxParked || lost != 10 {
		t.Errorf("%d remembered, %d counted", got, lost)
	}
}
