package session_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/source/session"
	"github.com/gpumemtrace/gpumemtrace/internal/source/unwind"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

// kinds adds up the bytes in use of each kind.
func kinds(s *snapshot.Snapshot) map[string]int64 {
	out := map[string]int64{}
	for i := range s.Samples {
		out[s.Samples[i].Kind] += s.Samples[i].InuseBytes
	}
	return out
}

// TestTensors: at every moment tensors are what the allocator has handed out, and with
// what is cached what it holds; other memory of the driver's stays as it is.
func TestTensors(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "tensor; untensor; empty_cache") // loads libc10, as an import of PyTorch does
	s := trace(t, session.Options{PIDs: []int{p.PID()}, Tensors: true})
	run(t, p, "cuMemAlloc_v2 7m")
	for _, step := range []string{
		"via lr tensor 1000; tensor 3m; tensor 19m; repeat 30 via rl tensor 700",
		"untensor; untensor 5; untensor 5; tensor 12m",
		"threads 4 { repeat 200 { tensor 5000; untensor 3 } }",
		"repeat 20 untensor; empty_cache",
		"repeat 5 tensor 8m; untensor 2; untensor 2; empty_cache",
	} {
		run(t, p, step)
		var allocated, reserved int64
		out := run(t, p, "tensors")
		if _, err := fmt.Sscan(out[0], &allocated, &reserved); err != nil {
			t.Fatalf("%q: %v", out, err)
		}
		eventually(t, func() string {
			got := kinds(s.Snapshot(false))
			if got["tensor"] == allocated && got["tensor"]+got["cached"] == reserved && got["device"] == 7<<20 {
				return ""
			}
			return fmt.Sprintf("after %q: %v, want %d in tensors of %d", step, got, allocated, reserved)
		})
	}
	snap := s.Snapshot(false)
	wantNoLoss(t, snap)
	for i := range snap.Samples {
		if x := &snap.Samples[i]; x.Kind == "tensor" && len(x.Stack) < 3 {
			t.Errorf("a tensor's stack: %v", x.Stack)
		}
	}
}

// pools are the segments of a snapshot's only allocator that are of no private pool: small
// ones and others.
func pools(a *snapshot.Allocator) [2]snapshot.Segments { return poolsOf(a, "") }

func poolsOf(a *snapshot.Allocator, private string) [2]snapshot.Segments {
	return [2]snapshot.Segments{a.Pool(1, private), a.Pool(2<<20, private)}
}

// divided is how the program's allocator says that its segments are divided.
func divided(t *testing.T, p *testcuda.Process) (out [2]snapshot.Segments) {
	t.Helper()
	return dividedOf(t, p, "")
}

// dividedOf is of a private pool.
func dividedOf(t *testing.T, p *testcuda.Process, private string) (out [2]snapshot.Segments) {
	t.Helper()
	for i, line := range run(t, p, "segments "+strings.ReplaceAll(private, ".", " ")) {
		s := &out[i]
		if _, err := fmt.Sscan(line, &s.Count, &s.Reserved, &s.Allocated, &s.FreeBlocks, &s.LargestFree, &s.Releasable); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		s.Cached = s.Reserved - s.Allocated
		if private != "" {
			s.Kept, s.Releasable = s.Releasable, 0
		}
	}
	return out
}

// TestPrivatePools: the segments of each private pool are divided as the allocator itself
// says, now and in a recording, and none of them counts for other requests. What another
// thread has taken while a pool was in use may be that pool's.
func TestPrivatePools(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{Env: []string{fmt.Sprint("TESTCUDA_TOTAL=", 200<<20)}})
	run(t, p, "tensor; untensor; empty_cache", "pool 0 9; unpool") // loads libc10 and libc10_cuda
	record := filepath.Join(t.TempDir(), "run.gmt")
	failures := make(chan *snapshot.OutOfMemory, 10)
	s := trace(t, session.Options{PIDs: []int{p.PID()}, Tensors: true, Recording: record, OutOfMemoryMax: 2, OutOfMemory: into(failures)})
	private := []string{"", "1.0", "0.3"}
	check := func(from string, a []snapshot.Allocator, want map[string][2]snapshot.Segments) string {
		for _, pool := range private {
			if len(a) != 1 || poolsOf(&a[0], pool) != want[pool] || a[0].Unseen != 0 {
				return fmt.Sprintf("%s, pool %q: %+v, want %+v", from, pool, a, want[pool])
			}
		}
		return ""
	}
	var want map[string][2]snapshot.Segments
	for _, step := range []string{
		"tensor 3m; tensor 700", "pool 1 0; tensor 700; tensor 4m; tensor 5m; tensor 30m; unpool", "untensor 1; untensor; tensor 5m",
		"pool 0 3; tensor 2m; unpool", "pool 1 0; tensor 3m; untensor 2; tensor 100; unpool; tensor 100; empty_cache",
	} {
		run(t, p, step)
		want = map[string][2]snapshot.Segments{}
		for _, pool := range private {
			want[pool] = dividedOf(t, p, pool)
		}
		eventually(t, func() string { return check("after "+step, s.Snapshot(false).Allocators, want) })
	}
	kept := want["1.0"][1].Kept
	if want["1.0"][1].LargestFree <= want[""][1].LargestFree || kept == 0 {
		t.Fatalf("the private pool has not the largest free block, or none that is a segment: %+v", want)
	}
	if sum := s.Snapshot(false).Allocators[0].Total(); sum.Releasable != want[""][0].Releasable+want[""][1].Releasable || sum.Kept < kept {
		t.Errorf("an empty_cache would give %d back, and %d are kept: %+v", sum.Releasable, sum.Kept, want)
	}

	// For want of memory too it is kept, though the tensor is for that pool.
	run(t, p, "pool 1 0", "expect 2 tensor 190m", "unpool")
	if o := received(t, failures); o.Private != "1.0" || o.Allocator == nil || poolsOf(o.Allocator, "1.0")[1].Kept != kept {
		t.Errorf("a tensor for pool %q: %+v", o.Private, o.Allocator)
	}

	run(t, p, "pool 1 0; threads 1 { tensor 40m }; unpool; tensor 21m")
	eventually(t, func() string {
		a := s.Snapshot(false).Allocators[0]
		if got := a.Pool(40<<20, "unknown"); got.Reserved != 40<<20 || got.Allocated != 40<<20 {
			return fmt.Sprintf("what may be of the pool: %+v of %+v", got, s.Snapshot(false).Allocators)
		}
		if got, all := a.Shared().Reserved, dividedOf(t, p, ""); got != all[0].Reserved+all[1].Reserved-40<<20 {
			return fmt.Sprintf("%d are of no pool, want all but 40 MiB of %+v", got, all)
		}
		return ""
	})
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	<-s.Done()
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	last := s.Snapshot(false)
	wantNoLoss(t, last)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := replay.Play(record, replay.Options{At: replay.End})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(last.Allocators, again.View(state.Want{}).Snapshot().Allocators); d != "" || len(last.Allocators) != 1 {
		t.Errorf("in the recording (-then +now):\n%s", d)
	}
}

// TestSegments: segments are divided as the allocator itself says.
func TestSegments(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "tensor; untensor; empty_cache")
	s := trace(t, session.Options{PIDs: []int{p.PID()}, Tensors: true})
	for _, step := range []string{
		"repeat 40 tensor 700", "tensor 3m; tensor 9m; tensor 1m; tensor 30m", "untensor 3; untensor 10; untensor 20; untensor 30",
		"threads 4 { repeat 300 { tensor 5000; untensor 3 } }", "repeat 20 untensor 2; tensor 25m; untensor; tensor 12m", "empty_cache",
	} {
		run(t, p, step)
		want := divided(t, p)
		eventually(t, func() string {
			if got := s.Snapshot(false).Allocators; len(got) != 1 || pools(&got[0]) != want || got[0].Unseen != 0 || got[0].Outside != 0 {
				return fmt.Sprintf("after %q: %+v, want %+v", step, got, want)
			}
			return ""
		})
	}
}

// TestTensorOutOfMemory: of a tensor that has no room the report tells its size and
// stack, and how the segments were divided when the allocator gave up. If giving back
// what it could brought the memory, it tells that.
func TestTensorOutOfMemory(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{Env: []string{fmt.Sprint("TESTCUDA_TOTAL=", 62<<20)}})
	run(t, p, "tensor; untensor; empty_cache")
	records := make(chan *snapshot.OutOfMemory, 10)
	s := trace(t, session.Options{PIDs: []int{p.PID()}, Tensors: true, OutOfMemoryMax: 2, OutOfMemory: into(records)})
	next := func() *snapshot.OutOfMemory { return received(t, records) }
	// Three segments of 20 MiB with two tensors each, of which one is freed; and a
	// small one that is free.
	run(t, p, "tensor 1k; repeat 6 tensor 9m; untensor; untensor 1; untensor 2; untensor 3", "expect 2 via rl tensor 19m")
	want := divided(t, p)
	o := next()
	if o.Recovered || o.Calls != 2 || o.Requested != 20<<20 || o.Tensor != 19<<20 || o.GaveBack != 2<<20 {
		t.Errorf("recovered %v, %d calls for %d, a tensor of %d, gave %d back", o.Recovered, o.Calls, o.Requested, o.Tensor, o.GaveBack)
	}
	if o.Framework == nil || o.Framework.Reserved != 60<<20 || o.Framework.Allocated != 27<<20 {
		t.Errorf("the framework says %+v", o.Framework)
	}
	if o.Allocator == nil || pools(o.Allocator) != want {
		t.Errorf("when it gave up: %+v, want %+v", o.Allocator, want)
	}
	var names []string
	for _, l := range o.Stack {
		for _, line := range l.Lines {
			names = append(names, line.Function)
		}
	}
	if text := strings.Join(names, " "); !strings.HasPrefix(text, "c10::reportOutOfMemoryToProfiler ") || !strings.Contains(text, "via_right") {
		t.Errorf("its stack: %q", text)
	}

	time.Sleep(1100 * time.Millisecond) // records are at least a second apart
	run(t, p, "untensor; untensor", "tensor 35m")
	o = next()
	if !o.Recovered || o.Calls != 1 || o.Requested != 36<<20 || o.Tensor != 35<<20 || o.GaveBack != 40<<20 || o.Framework != nil {
		t.Errorf("recovered %v after %d calls for %d, a tensor of %d, gave %d back, %+v", o.Recovered, o.Calls, o.Requested, o.Tensor, o.GaveBack, o.Framework)
	}
	wantNoLoss(t, s.Snapshot(false))
}

// TestTensorsWithoutPyTorch: nothing is missing that somebody could expect, and the
// user is told why there is nothing.
func TestTensorsWithoutPyTorch(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	told := make(chan string, 100)
	s := trace(t, session.Options{PIDs: []int{p.PID()}, Tensors: true, Warn: func(text string) { told <- text }})
	run(t, p, "repeat 5 cuMemAlloc_v2 1m")
	wantLive(t, s, p)
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	for {
		select {
		case text := <-told:
			if strings.Contains(text, "no tensors were seen") {
				return
			}
		default:
			t.Fatal("nobody was told")
		}
	}
}

// TestFreeStacks: with stacks of frees it is told which stack freed the tensors of
// which, by both ways to take stacks; without, none is.
func TestFreeStacks(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "tensor; untensor; empty_cache") // loads libc10, as an import of PyTorch does
	for _, c := range []struct {
		stacks unwind.Mode
		frees  bool
	}{{unwind.FramePointer, true}, {unwind.Always, true}, {unwind.FramePointer, false}} {
		s := trace(t, session.Options{PIDs: []int{p.PID()}, Tensors: true, FreeStacks: c.frees, Stacks: c.stacks})
		run(t, p, "via lrl tensor 1000; via lrl tensor 1000; via rl tensor 5000; tensor 7000")
		run(t, p, "via ll untensor; via r untensor; via ll untensor")
		want := map[string]snapshot.Freed{}
		if c.frees {
			want = map[string]snapshot.Freed{
				"lrl by ll": {Objects: 1, Bytes: 1024}, "lrl by r": {Objects: 1, Bytes: 1024}, "rl by ll": {Objects: 1, Bytes: 5120},
			}
		}
		eventually(t, func() string {
			snap := s.Session.Snapshot(state.Want{Freed: true})
			got := map[string]snapshot.Freed{}
			for _, f := range snap.Freed {
				of := &snap.Samples[f.Sample]
				if of.Kind != "tensor" {
					t.Errorf("of %s", of.Kind)
				}
				got[vias(of.Stack)+" by "+vias(f.By)] = snapshot.Freed{Objects: f.Objects, Bytes: f.Bytes}
			}
			if d := cmp.Diff(want, got); d != "" || kinds(snap)["tensor"] != 7168 {
				return fmt.Sprintf("%s, frees with stacks %t: %d in tensors, (-want +got):\n%s", c.stacks, c.frees, kinds(snap)["tensor"], d)
			}
			return ""
		})
		wantNoLoss(t, s.Snapshot(false))
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		run(t, p, "untensor; empty_cache")
	}
}

// vias returns the way through via_left and via_right that a stack took, as the
// workload's script says it.
func vias(stack []*snapshot.Location) (way string) {
	for _, l := range stack {
		switch l.Lines[len(l.Lines)-1].Function {
		case "via_left":
			way = "l" + way
		case "via_right":
			way = "r" + way
		}
	}
	return way
}
