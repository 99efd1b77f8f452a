package state

import (
	"slices"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// Calls of one thread that fail one soon after the other are one failure, which ends when
// its framework gives up, when the next one is late, and at the end.
func TestFailures(t *testing.T) {
	const ms = uint64(time.Millisecond)
	s := begun(record.Trace{APIs: []string{"", "cuMemAlloc_v2"}})
	type told struct {
		at, size uint64
		calls    int64
		tid      uint32
		api      string
		gaveUp   bool
	}
	var got []told
	x := NewFailures(func(f *Failure) {
		got = append(got, told{f.Time, f.Size(), f.Calls, f.TID, f.API, f.Framework})
	})
	failed := func(at, size uint64, tid uint32) {
		x.Add(s, &event.Event{Op: event.OpAlloc, Kind: event.KindDevice, Proc: prog, TID: tid, Time: at, Size: size, API: 1, Result: event.OutOfMemory})
	}
	gaveUp := func(at, size uint64, tid uint32) {
		x.Add(s, &event.Event{Op: event.OpOutOfMemory, Proc: prog, TID: tid, Time: at, Size: size})
	}
	failed(1*ms, 20*mib, 1)
	failed(2*ms, 7*mib, 2)
	failed(3*ms, 2*mib, 1) // in a piece
	gaveUp(4*ms, 19*mib, 1)
	failed(5*ms, 3*mib, 1)
	gaveUp(6*ms, 5*mib, 3) // by a limit of its own
	failed(705*ms, 4*mib, 1)
	failed(1500*ms, 6*mib, 2)
	x.End()
	x.End()
	want := []told{
		{1 * ms, 19 * mib, 2, 1, "cuMemAlloc_v2", true},
		{6 * ms, 5 * mib, 0, 3, "", true},
		{2 * ms, 7 * mib, 1, 2, "cuMemAlloc_v2", false},
		{5 * ms, 3 * mib, 2, 1, "cuMemAlloc_v2", false},
		{1500 * ms, 6 * mib, 1, 2, "cuMemAlloc_v2", false},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}

	got = nil
	for tid := range uint32(maxFailing + 1) {
		failed(2000*ms+uint64(tid), mib, tid)
	}
	if len(got) != maxFailing {
		t.Errorf("%d failures are told when there are too many, want %d", len(got), maxFailing)
	}
}
