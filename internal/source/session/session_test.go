package session_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/source/session"
	"github.com/gpumemtrace/gpumemtrace/internal/source/unwind"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/tenants"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// At every moment the snapshot holds what the driver holds, kind by kind.
func TestSnapshotEqualsDriver(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "init")
	s := trace(t, session.Options{PIDs: []int{p.PID()}})
	for _, step := range []string{
		"repeat 23 cuMemAlloc_v2 4096+i; repeat 5 cuMemAllocPitch_v2; cuMemAllocManaged 1m; repeat 3 cuMemHostAlloc",
		"repeat 7 cuMemMap 4m; repeat 7 cuMemCreate 2m; cuMemHostRegister 1m; cuMemRetainAllocationHandle",
		"repeat 11 cuMemAllocAsync 1000; repeat 3 cuMemAllocFromPoolAsync; repeat 3 cuMipmappedArrayCreate; cuArrayCreate_v2 64",
		"device 1; repeat 5 cuMemAlloc_v2 2m; cuGraphAddMemAllocNode 640; repeat 3 cuIpcOpenMemHandle_v2",
		"fail cuMemAlloc_v2 1 2; expect 2 cuMemAlloc_v2 77m; free cuMemAlloc_v2; free cuMemMap",
		"threads 4 { repeat 100 cuMemAlloc_v2 512; repeat 50 cuMemAllocAsync 700 }",
		// Memory of pools and graphs belongs to no context.
		"free cuGraphAddMemAllocNode; free cuMemAllocAsync; free cuMemAllocFromPoolAsync",
		"cuCtxCreate_v2; repeat 9 cuMemAlloc_v2 123; cuMemAllocManaged 1m; cuCtxDestroy_v2",
		"device 0; raw cuDevicePrimaryCtxReset_v2 1; init",
		"repeat 5 cuMemAllocAsync; free cuMemCreate; row cuMemMapArrayAsync; row cuMemImportFromShareableHandle",
	} {
		run(t, p, step)
		wantNoLoss(t, wantLive(t, s, p))
	}
	snap := s.Snapshot(false)
	i := slices.IndexFunc(snap.Processes, func(x snapshot.Process) bool { return x.PID == p.PID() })
	if x := snap.Processes[i]; x.Failed != 1 || x.OutOfMemory != 1 || x.Name != "workload" || x.Exited || x.Peak < x.Inuse {
		t.Errorf("process %+v", x)
	}
	if len(snap.Live) != 0 {
		t.Error("live rows that nobody asked for")
	}
}

// A snapshot has every call that returned before it was asked for, with its stack, however
// the stack was taken: of code that is known, or of a copy.
func TestSnapshotIsOfNow(t *testing.T) {
	for range 4 {
		p := start(t, testcuda.WorkloadNoFP, testcuda.Options{Libs: testcuda.LibsNoFP})
		run(t, p, "init")
		s := trace(t, session.Options{PIDs: []int{p.PID()}, Stacks: unwind.Always, NoMemo: true})
		for i := range 10 {
			run(t, p, []string{"via l", "via r", "via lr", "via rl"}[i%4]+" cuMemAlloc_v2 1000")
			var inuse int64
			for _, x := range s.Snapshot(false).Samples {
				inuse += x.InuseBytes
				if x.Owner == "" {
					t.Errorf("after %d calls, %d bytes of %q have no owner: %d frames", i+1, x.InuseBytes, x.API, len(x.Stack))
				}
			}
			if want := int64(1000 * (i + 1)); inuse != want {
				t.Errorf("%d bytes are in use, want %d", inuse, want)
			}
		}
	}
}

// A trace that ends right after the first call of a new program, whose code is not known
// yet, has that call's stack.
func TestStopAfterFirstCall(t *testing.T) {
	for range 8 {
		p := start(t, testcuda.WorkloadNoFP, testcuda.Options{Libs: testcuda.LibsNoFP})
		s := trace(t, session.Options{PIDs: []int{p.PID()}, Stacks: unwind.Always})
		if err := p.Send("exec " + testcuda.Get(t).Path(testcuda.WorkloadNoFP)); err != nil {
			t.Fatal(err)
		}
		run(t, p, "init", "via l cuMemAlloc_v2 1000")
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
		samples := s.Snapshot(false).Samples
		if len(samples) != 1 || samples[0].InuseBytes != 1000 || samples[0].Owner == "" {
			t.Errorf("samples %+v", samples)
		}
	}
}

// Every sample has the stack of its call and its labels.
func TestStacksAndLabels(t *testing.T) {
	for _, mode := range []unwind.Mode{unwind.FramePointer, unwind.Always} {
		t.Run(string(mode), func(t *testing.T) {
			program, libs := testcuda.Workload, testcuda.LibsDefault
			if mode == unwind.Always { // which needs no frame pointers
				program, libs = testcuda.WorkloadNoFP, testcuda.LibsNoFP
			}
			p := start(t, program, testcuda.Options{Libs: libs})
			run(t, p, "cudaMalloc")
			s := trace(t, session.Options{PIDs: []int{p.PID()}, API: probes.APIBoth, Stacks: mode})
			run(t, p, "via lr cudaMalloc 1000", "via rl cuMemAlloc_v2 2000")
			var samples map[int64]snapshot.Sample
			eventually(t, func() string {
				samples = map[int64]snapshot.Sample{}
				for _, x := range s.Snapshot(false).Samples {
					samples[x.InuseBytes] = x
				}
				if len(samples) != 2 {
					return fmt.Sprintf("%d samples, want 2", len(samples))
				}
				return ""
			})
			for size, want := range map[int64][]string{
				1000: {"cuMemAlloc_v2", "via_right", "via_left", "main"},
				2000: {"cuMemAlloc_v2", "via_left", "via_right", "main"},
			} {
				x := samples[size]
				var names []string
				for _, l := range x.Stack {
					for _, line := range l.Lines {
						names = append(names, line.Function)
					}
				}
				at := 0
				for _, name := range names {
					if at < len(want) && name == want[at] {
						at++
					}
				}
				if at < len(want) {
					t.Errorf("%d bytes: stack %q does not hold %q in turn", size, names, want)
				}
				if x.Kind != "device" || x.API != "cuMemAlloc_v2" || x.Owner == "" || x.Process == "" || x.PID != p.PID() {
					t.Errorf("%d bytes: labels %+v", size, x.Labels)
				}
				if runtime := map[int64]string{1000: "cudaMalloc"}[size]; x.Runtime != runtime {
					t.Errorf("%d bytes: runtime %q, want %q", size, x.Runtime, runtime)
				}
			}
		})
	}
}

// Snapshots are taken while events arrive, from several goroutines, and while
// the session stops.
func TestSnapshotsWhileEventsArrive(t *testing.T) {
	p := start(t, testcuda.Hammer, testcuda.Options{Args: []string{"-threads", "2", "-seconds", "1.5", "-wait"}})
	if _, err := p.Expect("ready"); err != nil {
		t.Fatal(err)
	}
	s := trace(t, session.Options{PIDs: []int{p.PID()}})
	if err := p.Send("go"); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 3 {
		wg.Go(func() {
			var last uint64
			for {
				snap := s.Snapshot(true)
				if snap.Meta.Events < last {
					t.Errorf("%d events, before %d", snap.Meta.Events, last)
				}
				last = snap.Meta.Events
				var objects int64
				for _, x := range snap.Samples {
					objects += x.InuseObjects
				}
				if int64(len(snap.Live)) != objects {
					t.Errorf("%d live rows, %d objects", len(snap.Live), objects)
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	lines, code, err := p.Wait()
	if err != nil || code != 0 || len(lines) != 1 {
		t.Fatalf("hammer: %q, exit %d, %v", lines, code, err)
	}
	wait(t, "the end of the target", s.Done())
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	close(stop)
	wg.Wait()
	want, err := testcuda.ParseStats(lines[0])
	if err != nil {
		t.Fatal(err)
	}
	snap := s.Snapshot(false)
	got := map[string]int64{}
	for _, x := range snap.Samples {
		got[x.API] += x.AllocObjects
	}
	lost := uint64(0)
	for _, c := range snap.Loss {
		if c.Name == "events_ring_full" {
			lost = c.Value
		}
	}
	for _, api := range []string{"cuMemAlloc_v2", "cuMemAllocAsync"} {
		if w := int64(want.APIs[api].OK); got[api] != w && (lost == 0 || got[api] > w) {
			t.Errorf("%s: %d allocations, the driver says %d, lost %d", api, got[api], w, lost)
		}
	}
}

// What was allocated before the trace and freed in it is counted as such.
func TestLateAttach(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "repeat 23 cuMemAlloc_v2 4096")
	s := trace(t, session.Options{PIDs: []int{p.PID()}})
	run(t, p, "repeat 5 cuMemFree_v2", "cuMemAlloc_v2 100")
	eventually(t, func() string {
		snap := s.Snapshot(false)
		if len(snap.Processes) != 1 || snap.Processes[0].UnmatchedFrees != 5 || snap.Processes[0].Inuse != 100 {
			return fmt.Sprintf("%+v", snap.Processes)
		}
		return ""
	})
}

// With room for ten, of which a tenant alone may have nine, totals stay right and the rest is said to
// be unattributed.
func TestMaxLive(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "init")
	s := trace(t, session.Options{PIDs: []int{p.PID()}, MaxLive: 10})
	run(t, p, "repeat 23 cuMemAlloc_v2 1000")
	check := func(inuse, unattributed int64) {
		t.Helper()
		eventually(t, func() string {
			snap := s.Snapshot(true)
			if len(snap.Processes) != 1 || snap.Processes[0].Inuse != inuse || snap.Processes[0].Unattributed != unattributed || len(snap.Live) > 9 {
				return fmt.Sprintf("%d rows, %+v", len(snap.Live), snap.Processes)
			}
			return ""
		})
	}
	check(23000, 14000)
	run(t, p, "free all")
	check(0, 0)
}

// A tenant that wants all rows leaves some to one that comes later, and is named.
func TestRowsAreShared(t *testing.T) {
	const maxLive, hostile, wants, hogs, neighbours = 100, 200, 4, 65534, 65533
	tenants.ByUser(t)
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	kit, err := testcuda.Get(t).Copy(dir)
	if err != nil {
		t.Fatal(err)
	}
	startAs := func(user uint32) *testcuda.Process {
		t.Helper()
		p, err := testcuda.Start(t.Context(), kit, testcuda.Workload, testcuda.Options{User: user})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		run(t, p, "init")
		return p
	}
	hog, other, neighbour := startAs(hogs), startAs(hogs), startAs(neighbours)
	s := trace(t, session.Options{PIDs: []int{hog.PID(), other.PID(), neighbour.PID()}, MaxLive: maxLive})
	run(t, hog, fmt.Sprintf("repeat %d cuMemAlloc_v2 1000", hostile/2))
	run(t, other, fmt.Sprintf("repeat %d cuMemAlloc_v2 1000", hostile/2))
	run(t, neighbour, fmt.Sprintf("repeat %d cuMemAlloc_v2 1000", wants))
	note := fmt.Sprintf("new allocations of process %d, and of others of its container, job or user, have no call stack", min(hog.PID(), other.PID()))
	eventually(t, func() string {
		snap := s.Snapshot(true)
		rows := map[int]int{}
		for i := range snap.Live {
			rows[snap.Samples[snap.Live[i].Sample].PID]++
		}
		var sum int64
		for _, p := range snap.Processes {
			if sum += p.Inuse; p.PID == neighbour.PID() && (p.Inuse != wants*1000 || p.Unattributed != 0) {
				return fmt.Sprintf("%+v", p)
			}
		}
		if sum != (hostile+wants)*1000 {
			return fmt.Sprintf("%d bytes", sum)
		}
		// With one more than 7 times 12 it has more than its part.
		if rows[hog.PID()]+rows[other.PID()] != 88 || rows[neighbour.PID()] != wants || !slices.ContainsFunc(snap.Notes, func(n string) bool { return strings.HasPrefix(n, note) }) {
			return fmt.Sprintf("rows %v, notes %q, want %q", rows, snap.Notes, note)
		}
		return ""
	})
}

// A failed call is recorded with what was live at that moment, once, and
// whether a retry helped.
func TestOutOfMemory(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "init", "cuMemAlloc_v2 4096")
	records := make(chan *snapshot.OutOfMemory, 10)
	s := trace(t, session.Options{PIDs: []int{p.PID()}, OutOfMemoryMax: 2, OutOfMemory: into(records)})
	next := func() *snapshot.OutOfMemory { return received(t, records) }
	run(t, p, "cuMemAlloc_v2 65536", "fail cuMemAlloc_v2 1 2", "try cuMemAlloc_v2 1048576")
	o := next()
	if o.Recovered || o.Requested != 1048576 || o.PID != p.PID() || o.API != "cuMemAlloc_v2" || o.Calls != 1 || len(o.Stack) < 2 {
		t.Errorf("not recovered: got %+v", o)
	}
	var held int64
	for _, sample := range o.Snapshot.Samples {
		held += sample.InuseBytes
	}
	if held != 65536 {
		t.Errorf("held %d bytes at that moment, want 65536", held)
	}

	time.Sleep(1100 * time.Millisecond) // records are at least a second apart
	run(t, p, "fail cuMemAlloc_v2 1 2", "try cuMemAlloc_v2 2097152", "cuMemAlloc_v2 2097152")
	if o := next(); !o.Recovered || o.Requested != 2097152 {
		t.Errorf("recovered: got %+v", o)
	}

	time.Sleep(1100 * time.Millisecond)
	run(t, p, "fail cuMemAlloc_v2 1 2", "try cuMemAlloc_v2 4194304")
	eventually(t, func() string {
		for _, c := range s.Snapshot(false).Loss {
			if c.Name == "oom_reports_suppressed" && c.Value == 1 {
				return ""
			}
		}
		return "the third failure is not counted as suppressed"
	})
	if len(records) != 0 {
		t.Error("more records than OutOfMemoryMax")
	}
}

// received returns the next record that comes.
func received(t *testing.T, records <-chan *snapshot.OutOfMemory) *snapshot.OutOfMemory {
	t.Helper()
	select {
	case o := <-records:
		return o
	case <-time.After(5 * time.Minute):
		t.Fatal("no record came")
		return nil
	}
}
