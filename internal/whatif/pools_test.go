package whatif

import (
	"slices"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
)

// While a thread uses a private pool, its requests are served from that pool. Those of other threads are
// not, but for autograd's thread while a graph is captured.
func TestCollectPrivatePools(t *testing.T) {
	const mib = 1 << 20
	p := event.Process{PID: 7, Start: 1}
	time, held := uint64(0), uint64(0)
	next := func(e event.Event) *event.Event {
		time += 1e6
		e.Time, e.Proc = time, p
		return &e
	}
	tensor := func(thread uint32, at uint64) *event.Event {
		held += mib
		return next(event.Event{Op: event.OpTensorAlloc, TID: thread, Addr: at, Size: mib, Handle: held, Part: 2 * held})
	}
	window := func(op event.Op, device int32, thread uint32, id uint64) *event.Event {
		return next(event.Event{Op: op, Device: device, TID: thread, Handle: id})
	}
	const backward = 5
	engine := &snapshot.Location{Address: 1, Lines: []snapshot.Line{{Function: "torch::autograd::Engine::thread_main"}}}
	behind := func(at uint64) *event.Event { // of autograd's thread
		e := *tensor(9, at)
		e.Stack = backward
		return &e
	}
	runs, err := Collect(recordtest.File(t,
		&record.Stack{ID: backward, Process: p, Frames: []*record.Place{record.NewPlace(1, 1, engine, nil)}},
		tensor(1, 2<<20),
		window(event.OpPrivatePoolBegin, 0, 1, 3), tensor(1, 4<<20), tensor(2, 6<<20),
		window(event.OpPrivatePoolBegin, 0, 2, 4), tensor(2, 8<<20), tensor(1, 10<<20),
		window(event.OpPrivatePoolBegin, 1, 3, 5), tensor(3, 12<<20), // on another GPU
		window(event.OpPrivatePoolEnd, 0, 1, 3), tensor(1, 14<<20), tensor(2, 16<<20), behind(22<<20),
		window(event.OpPrivatePoolBegin, 0, 1, 3), tensor(1, 18<<20),
		window(event.OpPrivatePoolEnd, 0, 1, 3), tensor(1, 20<<20),
		window(event.OpPrivatePoolEnd, 0, 2, 4), behind(24<<20)))
	if err != nil || len(runs) != 1 {
		t.Fatalf("%d runs, %v", len(runs), err)
	}
	if got, want := runs[0].Pools, []uint8{0, 1, 0, 2, 1, 0, 0, 2, 2, 1, 0}; !slices.Equal(got, want) {
		t.Errorf("pools %d, want %d", got, want)
	}
	if pr := Predict(runs[0], Options{}); pr.Pools != 2 || pr.Reason != "" {
		t.Errorf("%d private pools, %q", pr.Pools, pr.Reason)
	}
}
