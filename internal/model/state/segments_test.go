package state

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// shownAllocators are those of a snapshot, whose cached bytes its samples have too.
func shownAllocators(t *testing.T, s *State) []snapshot.Allocator {
	t.Helper()
	snap := s.View(Want{}).Snapshot()
	var samples, segments int64
	for i := range snap.Samples {
		if x := &snap.Samples[i]; x.Kind == event.KindCached.String() {
			samples += x.InuseBytes
		}
	}
	for i := range snap.Allocators {
		segments += snap.Allocators[i].Total().Cached
	}
	if samples != segments {
		t.Errorf("%d bytes are cached in samples, %d in segments", samples, segments)
	}
	return snap.Allocators
}

func wantAllocators(t *testing.T, when string, s *State, want ...snapshot.Allocator) {
	t.Helper()
	if d := cmp.Diff(want, shownAllocators(t, s)); d != "" {
		t.Errorf("%s (-want +got):\n%s", when, d)
	}
}

// TestSegments: small and large segments have their free blocks, and what is in no
// tensor of a segment without any comes free with the cache.
func TestSegments(t *testing.T) {
	s := begun(record.Trace{})
	s.Apply(alloc(prog, 1, 0x10000000, 20*mib))
	wantAllocators(t, "before the first tensor", s)
	s.Apply(tensor(2, 0x10000000, 4*mib, 0, 4*mib))
	s.Apply(tensor(3, 0x10000000+10*mib, 6*mib, 0, 10*mib))
	s.Apply(alloc(prog, 4, 0x20000000, 2*mib))
	s.Apply(tensor(5, 0x20000000, mib, 0, 11*mib))
	s.Apply(alloc(prog, 6, 0x30000000, 12*mib))
	s.Apply(tensor(7, 0x30000000, 12*mib, 0, 23*mib))
	s.Apply(tensorEnd(8, 0x30000000, 12*mib, 11*mib))
	all := snapshot.Allocator{PID: int(prog.PID), Process: "prog", GPU: "cuda:0", Segments: []snapshot.Segments{
		{Class: "small", Small: true, Count: 1, Reserved: 2 * mib, Allocated: mib, Cached: mib, FreeBlocks: 1, LargestFree: mib},
		{Class: "large", Count: 1, Reserved: 20 * mib, Allocated: 10 * mib, Cached: 10 * mib, FreeBlocks: 2, LargestFree: 6 * mib},
		{Class: "larger", Count: 1, Reserved: 12 * mib, Cached: 12 * mib, FreeBlocks: 1, LargestFree: 12 * mib, Releasable: 12 * mib},
	}}
	wantAllocators(t, "three segments", s, all)
	if got := all.Pool(mib, ""); got.Cached != mib {
		t.Errorf("for 1 MiB there are %d bytes", got.Cached)
	}
	if got := all.Pool(mib+512, ""); got.Cached != 22*mib || got.LargestFree != 12*mib {
		t.Errorf("for more there are %+v", got)
	}

	// What the allocator says tells of tensors that were lost, once all that it holds
	// was seen. Where its memory is older, it does not.
	last := tensor(9, 0x10000000+4*mib, mib, 0, 14*mib)
	last.Part = 34 * mib
	s.Apply(last)
	if got := shownAllocators(t, s)[0].Unseen; got != 2*mib {
		t.Errorf("%d bytes are unseen, want 2 MiB", got)
	}
	last = tensor(10, 0x90000000, mib, 0, 15*mib)
	last.Part = 35 * mib
	s.Apply(last)
	if got := shownAllocators(t, s)[0]; got.Unseen != 0 || got.Outside != mib {
		t.Errorf("%d bytes are unseen, want none, and %d outside, want 1 MiB", got.Unseen, got.Outside)
	}
}

// TestExpandableSegments: pages side by side are one segment, in which a block may lie
// across pages. Whole pages come free with the cache.
func TestExpandableSegments(t *testing.T) {
	s := begun(record.Trace{})
	const base, page = uint64(0x100000000), uint64(20 * mib)
	for i, at := range []uint64{0, 1, 2, 5} {
		handle := uint64(i + 1)
		s.Apply(&event.Event{Op: event.OpHandleCreate, Kind: event.KindVMM, Proc: prog, Time: 10 + handle, API: 1, Handle: handle, Size: page})
		s.Apply(&event.Event{Op: event.OpMap, Proc: prog, Time: 20 + handle, Addr: base + at*page, Size: page, Handle: handle})
	}
	s.Apply(tensor(30, base, 8*mib, 0, 8*mib))
	s.Apply(tensor(31, base+5*page, page, 0, 28*mib))
	want := snapshot.Allocator{PID: int(prog.PID), Process: "prog", GPU: "cuda:0", Segments: []snapshot.Segments{
		{Class: "expandable_large", Expandable: true, Count: 2, Reserved: 80 * mib, Allocated: 28 * mib, Cached: 52 * mib, FreeBlocks: 1, LargestFree: 52 * mib, Releasable: 40 * mib},
	}}
	wantAllocators(t, "two ranges", s, want)
	s.Apply(&event.Event{Op: event.OpUnmap, Proc: prog, Time: 40, Addr: base + page, Size: page})
	s.Apply(&event.Event{Op: event.OpHandleRelease, Proc: prog, Time: 41, Handle: 2})
	want.Segments[0] = snapshot.Segments{Class: "expandable_large", Expandable: true, Count: 3, Reserved: 60 * mib, Allocated: 28 * mib, Cached: 32 * mib, FreeBlocks: 2, LargestFree: 20 * mib, Releasable: 20 * mib}
	wantAllocators(t, "a page less", s, want)
}

// poolWindow opens or closes a window in which PyTorch takes memory for private pool 2.0.
func poolWindow(t uint64, op event.Op) *event.Event {
	return &event.Event{Op: op, Time: t, Proc: prog, TID: prog.PID, Handle: 2}
}

// TestPrivatePools: a private pool's segments are apart, emptying the cache does not give
// them back, and a failure tells which pool it wanted memory for. A capture by which no
// other thread may take memory for itself says whose a segment is that one took.
func TestPrivatePools(t *testing.T) {
	s := begun(record.Trace{Incidents: 2})
	on := func(tid uint32, e *event.Event) *event.Event {
		e.TID = tid
		return e
	}
	capture := func(t uint64, op event.Op, mode uint64) *event.Event {
		return &event.Event{Op: op, Time: t, Proc: prog, TID: prog.PID, Stream: 7, Part: mode}
	}
	s.Apply(on(prog.PID, alloc(prog, 1, 0x10000000, 20*mib)))
	s.Apply(tensor(2, 0x10000000, 4*mib, 0, 4*mib))
	s.Apply(poolWindow(3, event.OpPrivatePoolBegin))
	s.Apply(on(prog.PID, alloc(prog, 4, 0x20000000, 20*mib)))
	s.Apply(tensor(5, 0x20000000, mib, 0, 5*mib))
	s.Apply(tensorEnd(6, 0x20000000, mib, 4*mib))
	s.Apply(on(99, alloc(prog, 7, 0x30000000, 12*mib)))
	s.Apply(tensor(8, 0x30000000, 11*mib, 0, 15*mib))
	s.Apply(capture(9, event.OpCaptureBegin, 1))
	s.Apply(on(99, alloc(prog, 10, 0x40000000, 14*mib)))
	s.Apply(tensor(11, 0x40000000, 14*mib, 0, 29*mib))
	s.Apply(capture(12, event.OpCaptureEnd, 0))
	s.Apply(&event.Event{Op: event.OpOutOfMemory, Time: 13, Proc: prog, TID: prog.PID, Size: 17 * mib, Handle: 29 * mib, Part: 66 * mib})
	s.Apply(poolWindow(14, event.OpPrivatePoolEnd))
	s.Apply(on(prog.PID, alloc(prog, 15, 0x50000000, 2*mib)))
	s.Apply(tensor(16, 0x50000000, mib, 0, 30*mib))
	want := snapshot.Allocator{PID: int(prog.PID), Process: "prog", GPU: "cuda:0", Segments: []snapshot.Segments{
		{Class: "small", Small: true, Count: 1, Reserved: 2 * mib, Allocated: mib, Cached: mib, FreeBlocks: 1, LargestFree: mib},
		{Class: "large", Count: 1, Reserved: 20 * mib, Allocated: 4 * mib, Cached: 16 * mib, FreeBlocks: 1, LargestFree: 16 * mib},
		{Private: "2.0", Class: "large", Count: 1, Reserved: 20 * mib, Cached: 20 * mib, FreeBlocks: 1, LargestFree: 20 * mib, Kept: 20 * mib},
		{Private: "2.0", Class: "larger", Count: 1, Reserved: 14 * mib, Allocated: 14 * mib},
		{Private: "unknown", Class: "larger", Count: 1, Reserved: 12 * mib, Allocated: 11 * mib, Cached: mib, FreeBlocks: 1, LargestFree: mib},
	}}
	wantAllocators(t, "a window", s, want)
	if got := want.Pool(17*mib, ""); got.LargestFree != 16*mib {
		t.Errorf("for any request there are %+v", got)
	}
	if o := one(t, s); o.Private != "2.0" || o.Allocator == nil || o.Allocator.Pool(o.Tensor, o.Private).LargestFree != 20*mib {
		t.Errorf("a tensor for pool %q: %+v", o.Private, o.Allocator)
	}

	again := New()
	s.Keyframe(again.Apply)
	if d := cmp.Diff([]snapshot.Allocator{want}, again.View(Want{}).Snapshot().Allocators); d != "" {
		t.Errorf("after a keyframe (-want +got):\n%s", d)
	}
}
