package session_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
	"github.com/gpumemtrace/gpumemtrace/internal/session"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/testcuda"
	"github.com/gpumemtrace/gpumemtrace/internal/unwind"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// trace starts a session. A test that may not trace is skipped, and fails in
// CI.
func trace(t *testing.T, opts session.Options) tracing {
	t.Helper()
	opts.Follow = true
	if opts.Stacks == "" {
		opts.Stacks = unwind.FramePointer // which starts at once
	}
	s, err := session.Start(opts)
	if errors.Is(err, probes.ErrPrivilege) && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return tracing{s}
}

func start(t *testing.T, program testcuda.Program, opts testcuda.Options) *testcuda.Process {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	p, err := testcuda.Start(ctx, testcuda.Get(t), program, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func run(t *testing.T, p *testcuda.Process, commands ...string) []string {
	t.Helper()
	lines, err := p.Run(commands...)
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// eventually waits until check, which looks at what arrives in the
// background, has nothing to say.
func eventually(t *testing.T, check func() string) {
	t.Helper()
	var text string
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if text = check(); text == "" {
			return
		}
	}
	t.Fatal(text)
}

func wait(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(10 * time.Second):
		t.Fatalf("waited 10 s for %s", what)
	}
}

// live sums a snapshot as the stand-in does.
func live(s *snapshot.Snapshot, pid int) map[string]testcuda.Live {
	sum := map[string]testcuda.Live{}
	for _, x := range s.Samples {
		if x.PID == pid && x.InuseObjects != 0 {
			l := sum[x.Kind]
			l.Objects += x.InuseObjects
			l.Bytes += x.InuseBytes
			sum[x.Kind] = l
		}
	}
	return sum
}

// wantLive waits until the snapshot's sums are the driver's.
func wantLive(t *testing.T, s tracing, p *testcuda.Process) *snapshot.Snapshot {
	t.Helper()
	want, err := p.Stats()
	if err != nil {
		t.Fatal(err)
	}
	var snap *snapshot.Snapshot
	eventually(t, func() string {
		snap = s.Snapshot(true)
		got := live(snap, p.PID())
		for kind, w := range want.Live {
			g := got[kind]
			if kind == event.KindImported.String() { // whose sizes nobody tells
				g.Bytes, w.Bytes = 0, 0
			}
			if g != w {
				return fmt.Sprintf("live %s: %+v, the driver says %+v", kind, g, w)
			}
		}
		return ""
	})
	i := slices.IndexFunc(snap.Processes, func(x snapshot.Process) bool { return x.PID == p.PID() })
	if i < 0 {
		t.Fatalf("no totals of process %d", p.PID())
	}
	var used int64
	for _, n := range want.Used {
		used += n
	}
	total := snap.Processes[i]
	if total.Inuse != used || total.Managed != want.Live["managed"].Bytes ||
		total.Host != want.Live["host"].Bytes+want.Live["host_registered"].Bytes+want.Live["vmm_host"].Bytes ||
		total.Graph != want.Live["graph"].Bytes {
		t.Errorf("totals %+v, the driver says used %d and %+v", total, used, want.Live)
	}
	rows := map[string]testcuda.Live{}
	for _, a := range snap.Live {
		if x := snap.Samples[a.Sample]; x.PID == p.PID() {
			l := rows[x.Kind]
			l.Objects++
			l.Bytes += a.Size
			rows[x.Kind] = l
		}
	}
	for kind, l := range live(snap, p.PID()) {
		if rows[kind] != l {
			t.Errorf("rows of live %s: %+v, samples %+v", kind, rows[kind], l)
		}
	}
	return snap
}

func wantNoLoss(t *testing.T, s *snapshot.Snapshot) {
	t.Helper()
	for _, c := range s.Loss {
		if c.Value != 0 && !strings.HasPrefix(c.Name, "frames_") && !strings.HasPrefix(c.Name, "names_") {
			t.Logf("%s = %d", c.Name, c.Value)
		}
		for _, prefix := range []string{"events_", "calls_", "records_", "arguments_", "targets_", "runs_"} {
			if strings.HasPrefix(c.Name, prefix) && c.Value != 0 {
				t.Errorf("%s = %d", c.Name, c.Value)
			}
		}
	}
}

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

// A target that ends in the middle leaves its data, and the trace knows.
func TestTargetEnds(t *testing.T) {
	for _, how := range []string{"exit", "_exit 3", "kill 9", "exec /bin/true"} {
		t.Run(how, func(t *testing.T) {
			p := start(t, testcuda.Workload, testcuda.Options{})
			run(t, p, "init")
			s := trace(t, session.Options{PIDs: []int{p.PID()}})
			if err := p.Send("repeat 23 cuMemAlloc_v2 4096", "sleep 100", how); err != nil {
				t.Fatal(err)
			}
			wait(t, "the end of the target", s.Done())
			if err := s.Stop(); err != nil {
				t.Fatal(err)
			}
			snap := s.Snapshot(false)
			if len(snap.Processes) != 1 || len(snap.Samples) != 1 {
				t.Fatalf("%d processes, %d samples, want one each", len(snap.Processes), len(snap.Samples))
			}
			x, sample := snap.Processes[0], snap.Samples[0]
			if !x.Exited || x.Allocated != 23*4096 || x.Peak != 23*4096 || x.Name == "" {
				t.Errorf("process %+v", x)
			}
			if sample.AllocObjects != 23 || sample.AllocBytes != 23*4096 || sample.PeakBytes != 23*4096 || len(sample.Stack) < 4 {
				t.Errorf("sample %+v of %d frames", sample.Values, len(sample.Stack))
			}
			if last := snap.Samples[0].Stack[1]; last.Lines[0].Reason != "" {
				t.Errorf("a frame without a name: %+v", last.Lines[0])
			}
			if again := s.Snapshot(false); again.Meta.Duration != snap.Meta.Duration || again.Meta.Events != snap.Meta.Events {
				t.Errorf("after the end: %+v, then %+v", snap.Meta, again.Meta)
			}
		})
	}
}

// A process that has ended and was not waited for yet is no target.
func TestBadTargets(t *testing.T) {
	zombie := exec.Command("true")
	if err := zombie.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", zombie.Process.Pid))
		if !strings.Contains(string(text), "State:\tZ") {
			return "it does not end"
		}
		return ""
	})
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	threads := start(t, testcuda.Workload, testcuda.Options{})
	run(t, threads, "echo up")
	if err := threads.Send("threads 1 sleep 60000"); err != nil {
		t.Fatal(err)
	}
	tid := 0
	eventually(t, func() string {
		list, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", threads.PID()))
		if len(list) != 2 {
			return "no second thread"
		}
		fmt.Sscan(list[1].Name(), &tid)
		return ""
	})
	for pid, want := range map[int]string{
		zombie.Process.Pid: "it has exited",
		gone.Process.Pid:   "there is no such process",
		os.Getpid():        "that is gpumemtrace itself",
		tid:                "that is a thread",
		2:                  "that is a kernel thread",
	} {
		if _, err := os.Stat("/proc/2/exe"); pid == 2 && err == nil {
			continue // in a PID namespace 2 is anything
		}
		s, err := session.Start(session.Options{PIDs: []int{pid}, Stacks: unwind.FramePointer})
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("process %d: %v, want %q", pid, err, want)
		}
	}
	zombie.Wait()
}

func TestSeveralTargets(t *testing.T) {
	a, b, c := start(t, testcuda.Workload, testcuda.Options{}), start(t, testcuda.WorkloadNoFP, testcuda.Options{}), start(t, testcuda.Workload, testcuda.Options{})
	for _, p := range []*testcuda.Process{a, b, c} {
		run(t, p, "init")
	}
	s := trace(t, session.Options{PIDs: []int{a.PID(), b.PID()}})
	for _, p := range []*testcuda.Process{a, b, c} {
		run(t, p, fmt.Sprintf("repeat 23 cuMemAlloc_v2 %d", p.PID()))
	}
	wantLive(t, s, a)
	snap := wantLive(t, s, b)
	if n := live(snap, c.PID()); len(n) != 0 || len(snap.Processes) != 2 {
		t.Errorf("a process that is no target: %+v", n)
	}
	for _, pid := range []int{a.PID(), b.PID()} {
		if !strings.Contains(s.Target(), fmt.Sprint(pid)) {
			t.Errorf("target %q", s.Target())
		}
	}
	end := func(p *testcuda.Process) {
		if err := p.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		p.Wait()
	}
	end(a)
	eventually(t, func() string {
		for _, x := range s.Snapshot(false).Processes {
			if x.PID == a.PID() && x.Exited {
				return ""
			}
		}
		return "the first target's end is not seen"
	})
	select {
	case <-s.Done():
		t.Error("done while a target runs")
	default:
	}
	end(b)
	wait(t, "the end of both", s.Done())
}

// A target that ends before the others are traced leaves them to be waited for.
func TestTargetEndsAtStart(t *testing.T) {
	a, b := start(t, testcuda.WorkloadLate, testcuda.Options{}), start(t, testcuda.Workload, testcuda.Options{})
	run(t, a, "echo up")
	run(t, b, "init")
	s := trace(t, session.Options{PIDs: []int{a.PID(), b.PID()}, Warn: func(text string) {
		if strings.Contains(text, fmt.Sprintf("process %d ", a.PID())) { // it uses no CUDA library yet
			if err := a.Signal(syscall.SIGKILL); err != nil {
				t.Error(err)
			}
			a.Wait()
			time.Sleep(200 * time.Millisecond) // its end is seen
		}
	}})
	select {
	case <-s.Done():
		t.Error("done while a target runs")
	default:
	}
	run(t, b, "cuMemAlloc_v2 4096")
	wantLive(t, s, b)
	if err := b.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b.Wait()
	wait(t, "the end of both", s.Done())
}

// Children count for themselves, and the trace lasts as long as they do.
func TestChildren(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "cuMemAlloc_v2 100")
	s := trace(t, session.Options{PIDs: []int{p.PID()}})
	lines := run(t, p, "cuMemAlloc_v2 200", "fork { init; repeat 3 cuMemAlloc_v2 1000 }")
	var child int
	if _, err := fmt.Sscanf(lines[0], "child %d", &child); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string {
		per := map[int]snapshot.Process{}
		for _, x := range s.Snapshot(false).Processes {
			per[x.PID] = x
		}
		if x := per[child]; !x.Exited || x.Allocated != 3000 || x.Name != "workload" {
			return fmt.Sprintf("child %+v", x)
		}
		if x := per[p.PID()]; x.Exited || x.Allocated != 200 || x.Inuse != 200 {
			return fmt.Sprintf("parent %+v", x)
		}
		return ""
	})
}

func TestAll(t *testing.T) {
	before := start(t, testcuda.Workload, testcuda.Options{})
	run(t, before, "init")
	s := trace(t, session.Options{All: true})
	after := start(t, testcuda.Workload, testcuda.Options{})
	run(t, after, "init")
	for _, p := range []*testcuda.Process{before, after} {
		run(t, p, "repeat 23 cuMemAlloc_v2 4096")
		wantLive(t, s, p)
	}
	if s.Target() != "every process" {
		t.Errorf("target %q", s.Target())
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

func TestWaitsForCUDA(t *testing.T) {
	p := start(t, testcuda.WorkloadLate, testcuda.Options{})
	run(t, p, "echo up")
	_, err := session.Start(session.Options{PIDs: []int{p.PID()}, RequireCUDA: true, Stacks: unwind.FramePointer})
	if errors.Is(err, probes.ErrPrivilege) && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	if err == nil || !strings.Contains(err.Error(), "uses no CUDA library") {
		t.Errorf("required: %v", err)
	}
	var mu sync.Mutex
	var warnings []string
	s := trace(t, session.Options{PIDs: []int{p.PID()}, Warn: func(text string) {
		mu.Lock()
		warnings = append(warnings, text)
		mu.Unlock()
	}})
	mu.Lock()
	if !slices.ContainsFunc(warnings, func(w string) bool { return strings.Contains(w, "waiting for it to load one") }) {
		t.Errorf("warnings %q", warnings)
	}
	mu.Unlock()
	run(t, p, "dlopen", "sleep 500", "init", "repeat 23 cuMemAlloc_v2")
	wantLive(t, s, p)
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

// With room for few, totals stay right and the rest is said to be unattributed.
func TestMaxLive(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "init")
	s := trace(t, session.Options{PIDs: []int{p.PID()}, MaxLive: 10})
	run(t, p, "repeat 23 cuMemAlloc_v2 1000")
	check := func(inuse, unattributed int64) {
		t.Helper()
		eventually(t, func() string {
			snap := s.Snapshot(true)
			if len(snap.Processes) != 1 || snap.Processes[0].Inuse != inuse || snap.Processes[0].Unattributed != unattributed || len(snap.Live) > 10 {
				return fmt.Sprintf("%d rows, %+v", len(snap.Live), snap.Processes)
			}
			return ""
		})
	}
	check(23000, 13000)
	run(t, p, "free all")
	check(0, 0)
}

// A failed call is recorded with what was live at that moment, once, and
// whether a retry helped.
func TestOutOfMemory(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "init", "cuMemAlloc_v2 4096")
	records := make(chan *snapshot.OutOfMemory, 10)
	s := trace(t, session.Options{PIDs: []int{p.PID()}, OutOfMemoryMax: 2, OutOfMemory: into(records)})
	next := func() *snapshot.OutOfMemory {
		t.Helper()
		select {
		case o := <-records:
			return o
		case <-time.After(10 * time.Second):
			t.Fatal("no record came")
			return nil
		}
	}
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
