package probes

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/cilium/ebpf"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

// In a window each tensor is seen from its beginning to its end, and outside of windows none. What
// CUDA's calls do is seen always. It is the same with each way to attach probes.
func TestWindow(t *testing.T) {
	for _, way := range []ebpf.AttachType{attachSession, ebpf.AttachTraceUprobeMulti, ebpf.AttachNone} {
		t.Run(fmt.Sprint("type ", way), func(t *testing.T) {
			needAttach(t, way)
			p := start(t, testcuda.Workload, testcuda.Options{})
			run(t, p, "tensor; untensor; empty_cache") // loads libc10
			opts, asked := Options{Tensors: true, Windows: true, attach: by(way)}, 1
			if way == ebpf.AttachNone {
				// The kernel takes a tenth of a second for each link of one probe.
				opts.API, asked = APIRuntime, 0
			}
			tr := traced(t, p, opts)
			none := openTrace(t, opts)
			if err := none.OpenWindow(func() { t.Error("a window without a process") }); !errors.Is(err, ErrNoTensors) {
				t.Error(err)
			}
			want := func(when string, tensors int) {
				t.Helper()
				run(t, p, "cuMemAlloc_v2 7m", "repeat 3 tensor 1000", "untensor; untensor; untensor")
				events := tr.drain()
				made := count(events, func(e *event.Event) bool { return e.Op == event.OpTensorAlloc })
				freed := count(events, func(e *event.Event) bool { return e.Op == event.OpTensorFree })
				calls := count(events, func(e *event.Event) bool { return e.Op == event.OpAlloc && e.Size == 7<<20 })
				if made != tensors || freed != tensors || calls != asked {
					t.Errorf("%s: %d tensors made, %d freed, %d calls of CUDA's, want %d, %d and %d", when, made, freed, calls, tensors, tensors, asked)
				}
			}
			want("before the first window", 0)
			for i := range 3 {
				began := false
				if err := tr.OpenWindow(func() {
					began = true
					want("before its gate opens", 0)
				}); err != nil || !began {
					t.Fatalf("began: %v, %v", began, err)
				}
				want(fmt.Sprint("in window ", i), 3)
				if err := tr.OpenWindow(func() { t.Error("two windows") }); err == nil {
					t.Error("a window opened in a window")
				}
				if err := tr.CloseWindow(); err != nil {
					t.Fatal(err)
				}
				want("between windows", 0)
			}
			if err := tr.OpenWindow(func() {}); err != nil {
				t.Fatal(err)
			}
			if err := tr.Stop(); err != nil {
				t.Fatal(err)
			}
			run(t, p, "tensor 1000")
			if err := tr.OpenWindow(func() {}); err == nil {
				t.Error("a window opened after the end")
			}
			if events := tr.drain(); len(events) != 0 {
				t.Errorf("events after the end: %s", format(events))
			}
			tr.wantLoss(nil)
		})
	}
}

// BenchmarkWindow opens and closes windows on a program with PyTorch's library.
func BenchmarkWindow(b *testing.B) {
	p := start(b, testcuda.Workload, testcuda.Options{})
	run(b, p, "tensor; untensor; empty_cache")
	tr := traced(b, p, Options{Tensors: true, Windows: true})
	for b.Loop() {
		if err := tr.OpenWindow(func() {}); err != nil {
			b.Fatal(err)
		}
		if err := tr.CloseWindow(); err != nil {
			b.Fatal(err)
		}
	}
}

// The end of a trace waits for a window that is about to put its probes on, which then puts on none.
func TestEndDuringOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := makeWindow(nil)
		l := &libraries{windows: map[*window]bool{w: true}}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if err := l.closeWindow(w); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		select {
		case <-ended:
			t.Error("the trace took its probes off while a window was about to put some on")
		default:
		}
		// Neither a library nor a program: to attach one would panic.
		<-w.putOn([]*probedFile{{attachment: &attachment{}}}, programs{})
		<-ended
	})
}
