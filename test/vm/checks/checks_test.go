// Package checks does what users do, with the stand-in CUDA, on the kernel at hand:
// test/vm boots others for it. It has tests only. What it wants of a kernel is the
// same for every one that is supported: exact totals, complete stacks, repeated ones
// from the memo, words that are true, and nothing left behind.
package checks

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/confine"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

// rounds of the job: in each, every path allocates.
const rounds = 400

var paths = []string{"lll", "llr", "lrl", "lrr", "rll", "rlr", "rrl", "rrr"}

// job is a script of 8 paths of calls. Half of what it allocates lives on.
func job() string {
	var b strings.Builder
	fmt.Fprintf(&b, "repeat %d {", rounds)
	for i, path := range paths {
		fmt.Fprintf(&b, " via %s %s %d+i;", path, []string{"cudaMalloc", "cuMemAllocAsync"}[i%2], 4096*(i+1))
	}
	return b.String() + " }; free cuMemAllocAsync"
}

// byPath counts a job's calls by the paths in their stacks.
func byPath(p profile, pid int) map[string]int64 {
	return p.calls(pid, func(function, _ string) bool { return function == "via_left" || function == "via_right" })
}

// wantedCalls is how many each path of a job has.
func wantedCalls() map[string]int64 {
	want := map[string]int64{}
	for _, path := range paths {
		want[strings.TrimSpace(strings.NewReplacer("l", "via_left ", "r", "via_right ").Replace(path))] = rounds
	}
	return want
}

// wantPaths fails unless each path of a job has its calls.
func wantPaths(p profile, pid int) {
	p.Helper()
	if got, want := byPath(p, pid), wantedCalls(); !maps.Equal(got, want) {
		p.Errorf("calls by path: %v; want %v", got, want)
	}
}

// named waits until the tracer knows a job's functions, whose names are read while it lives.
func (r *trace) named(pid int) {
	r.Helper()
	r.shows(func(p profile) bool { return maps.Equal(byPath(p, pid), wantedCalls()) })
}

// launch traces a job from its start.
func launch(t *testing.T, program testcuda.Program, libs testcuda.Libs, args ...string) (profile, *testcuda.Stats) {
	t.Helper()
	kit := testcuda.Get(t)
	r := start(t, kit.Env(libs), append(args, "--", kit.Path(program))...).on()
	if _, err := io.WriteString(r.in, job()+"; stats\n"); err != nil {
		t.Fatal(err)
	}
	r.shows(func(p profile) bool {
		return len(p.Processes) == 1 && maps.Equal(byPath(p, p.Processes[0].PID), wantedCalls())
	})
	r.in.Close()
	p := r.profile()
	stats, err := testcuda.ParseStats(r.stdout.String())
	if err != nil {
		t.Fatal(err)
	}
	return p, stats
}

func TestDoctor(t *testing.T) {
	doctor := exec.Command(binary, "doctor", "--json")
	var said strings.Builder
	doctor.Stderr = &said
	out, failed := doctor.Output() // it fails where a check does
	var checks []struct{ Group, Check, Status, Detail string }
	if err := json.Unmarshal(out, &checks); err != nil {
		t.Fatalf("%v: %s: %v: %s", err, out, failed, said.String())
	}
	seen := 0
	for _, c := range checks {
		if c.Group != "Kernel" && c.Group != "Tracing" {
			continue
		}
		seen++
		t.Logf("%s, %s: %s, %s", c.Group, c.Check, c.Status, c.Detail)
		// Without uprobe_multi (Linux 6.6) tracing is the same. Without uprobe sessions
		// (6.13) the kernel can end a process that calls CUDA from a signal handler.
		if c.Status != "ok" && c.Check != "uprobe sessions" && !strings.Contains(c.Detail, "tracing is the same") {
			t.Errorf("%s, %s is not ok", c.Group, c.Check)
		}
	}
	if seen < 5 {
		t.Errorf("%d checks of the kernel and of tracing: %v", seen, failed)
	}
}

func TestCommand(t *testing.T) {
	p, stats := launch(t, testcuda.WorkloadNoFP, testcuda.LibsNoFP)
	p.whole(stats)
	p.memoized()
	wantPaths(p, stats.PID)
}

func TestCommandWithoutMemo(t *testing.T) {
	p, stats := launch(t, testcuda.WorkloadNoFP, testcuda.LibsNoFP, "--no-stack-memo")
	p.whole(stats)
	wantPaths(p, stats.PID)
}

func TestFramePointers(t *testing.T) {
	p, stats := launch(t, testcuda.Workload, testcuda.LibsDefault, "--stacks", "fp")
	p.whole(stats)
	wantPaths(p, stats.PID)
	if want := "frame pointers"; p.Meta.StackMode != want {
		t.Errorf("stacks: %s; want %s", p.Meta.StackMode, want)
	}
}

func TestVerify(t *testing.T) {
	p, stats := launch(t, testcuda.WorkloadNoFP, testcuda.LibsNoFP, "--verify-stacks", "1")
	p.whole(stats)
	wantPaths(p, stats.PID)
	var verified, differed int
	p.note("verified: %d memoized stacks were unwound as well, %d differed", &verified, &differed)
	if verified < rounds*len(paths)*9/10 || differed != 0 {
		t.Errorf("%d memoized stacks were unwound as well, %d differed", verified, differed)
	}
}

// A stack of the interpreter's, of Python functions and of C between them.
func TestPython(t *testing.T) {
	const depth, calls = 150, 300 // one call in a hundred may be unwound again
	program := fmt.Sprintf(`
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0

def allocate(i):
    assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(4096 + i)) == 0

def deep(n, i):
    if n == 1:
        list(map(allocate, [i]))  # through C
    else:
        deep(n - 1, i)

sys.stdin.readline()
for i in range(%d):
    deep(%d, i)
sys.stdin.readline()  # its code objects are read while it lives
`, calls, depth)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	job := exec.CommandContext(ctx, "python3", "-c", program)
	job.Env = append(os.Environ(), testcuda.Get(t).Env(testcuda.LibsNoFP)...)
	job.Stderr = t.Output()
	stdin, err := job.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := job.Start(); err != nil {
		t.Fatal(err)
	}
	version, _ := exec.CommandContext(ctx, "python3", "-V").Output()
	t.Logf("%s", version)
	r := start(t, nil, "-p", fmt.Sprint(job.Process.Pid)).on()
	if _, err := io.WriteString(stdin, "\n"); err != nil {
		t.Fatal(err)
	}
	python := func(p profile) map[string]int64 {
		return p.calls(job.Process.Pid, func(_, file string) bool { return file == "<string>" })
	}
	want := map[string]int64{"<module> " + strings.Repeat("deep ", depth) + "allocate": calls}
	r.shows(func(p profile) bool { return maps.Equal(python(p), want) })
	stdin.Close()
	if err := job.Wait(); err != nil {
		t.Fatal(err)
	}
	p := r.profile()
	p.lostNothing()
	p.memoized()
	got := python(p)
	if !maps.Equal(got, want) {
		short := map[string]int64{}
		for path, n := range got {
			short[fmt.Sprintf("%d functions, %q first", len(strings.Fields(path)), path[:min(len(path), 20)])] += n
		}
		t.Errorf("calls by Python functions: %v; want %d under %d", short, calls, depth+2)
	}
}

func TestAttach(t *testing.T) {
	w := workload(t, testcuda.WorkloadNoFP, testcuda.LibsNoFP)
	r := start(t, nil, "-p", fmt.Sprint(w.PID())).on()
	if n := programs(t); n == 0 {
		t.Error("the kernel shows none of the tracer's programs while it traces")
	}
	run(t, w, job())
	stats, err := w.Stats()
	if err != nil {
		t.Fatal(err)
	}
	r.named(stats.PID)
	if _, _, err := w.Wait(); err != nil {
		t.Fatal(err)
	}
	p := r.profile()
	p.whole(stats)
	p.memoized()
	wantPaths(p, stats.PID)
}

// The capabilities that are kept while tracing are enough, and root's user id is not
// needed beside them.
func TestCapabilities(t *testing.T) {
	w := workload(t, testcuda.WorkloadNoFP, testcuda.LibsNoFP)
	const nobody = 65534
	few := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	needed, err := confine.Needed()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("capabilities %d", needed)
	for _, c := range needed {
		few.AmbientCaps = append(few.AmbientCaps, uintptr(c))
	}
	r := startAs(t, few, nil, "--no-cache", "-p", fmt.Sprint(w.PID())).on()
	run(t, w, job())
	stats, err := w.Stats()
	if err != nil {
		t.Fatal(err)
	}
	r.named(stats.PID)
	if _, _, err := w.Wait(); err != nil {
		t.Fatal(err)
	}
	p := r.profile()
	p.whole(stats)
	p.memoized()
	wantPaths(p, stats.PID)
}

// What PyTorch's allocator says that it handed out and holds is what its tensors and the rest
// of its segments add up to.
func TestTensors(t *testing.T) {
	w := workload(t, testcuda.WorkloadNoFP, testcuda.LibsNoFP)
	run(t, w, "tensor; untensor; empty_cache") // loads libc10, as an import of PyTorch does
	r := start(t, nil, "-p", fmt.Sprint(w.PID()), "--tensors").on()
	run(t, w, "via lr tensor 512; repeat 100 via rl tensor 300k; repeat 40 untensor 7; via ll tensor 19m; threads 4 { repeat 100 { tensor 5000; untensor 3 } }")
	var allocated, reserved int64
	if out := run(t, w, "tensors"); len(out) == 0 {
		t.Fatal("no totals")
	} else if _, err := fmt.Sscan(out[0], &allocated, &reserved); err != nil {
		t.Fatal(err)
	}
	r.shows(func(p profile) bool { return p.inUse()["tensor"] == allocated }) // names are read while it lives
	if _, _, err := w.Wait(); err != nil {
		t.Fatal(err)
	}
	p := r.profile()
	p.lostNothing()
	rows, inUse := 0, p.inUse()
	for _, s := range p.Samples {
		if s.Labels.Kind == "tensor" && len(s.Stack) > 5 {
			rows++
		}
	}
	if allocated == 0 || rows == 0 || inUse["tensor"] != allocated || inUse["tensor"]+inUse["cached"] != reserved {
		t.Errorf("in use: %v in %d rows; want %d in tensors of %d", inUse, rows, allocated, reserved)
	}
}

// The segments of each private pool, which PyTorch's allocator tells of at the entry of
// two of its functions, are divided as it says itself.
func TestPrivatePools(t *testing.T) {
	w := workload(t, testcuda.WorkloadNoFP, testcuda.LibsNoFP)
	run(t, w, "tensor; untensor; empty_cache; pool 0 9; unpool") // loads libc10 and libc10_cuda
	r := start(t, nil, "-p", fmt.Sprint(w.PID()), "--tensors").on()
	run(t, w, "tensor 3m; repeat 40 tensor 700; pool 1 0; repeat 40 tensor 700; tensor 4m; tensor 30m; unpool")
	run(t, w, "untensor 1; repeat 20 untensor 2; pool 0 3; tensor 2m; unpool; pool 1 0; tensor 9m; untensor; unpool; tensor 100; empty_cache")
	type division struct{ Segments, Reserved, Allocated, FreeBlocks, LargestFree, Whole int64 }
	want, allocated := map[string]division{}, int64(0)
	for _, pool := range []string{"", "1.0", "0.3"} {
		for i, line := range run(t, w, "segments "+strings.ReplaceAll(pool, ".", " ")) {
			var d division
			if _, err := fmt.Sscan(line, &d.Segments, &d.Reserved, &d.Allocated, &d.FreeBlocks, &d.LargestFree, &d.Whole); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			allocated += d.Allocated
			if d.Segments > 0 {
				want[fmt.Sprintf("pool %q, small %t", pool, i == 0)] = d
			}
		}
	}
	r.shows(func(p profile) bool { return p.inUse()["tensor"] == allocated }) // names are read while it lives
	if _, _, err := w.Wait(); err != nil {
		t.Fatal(err)
	}
	p := r.profile()
	p.lostNothing()
	got := map[string]division{}
	for _, a := range p.Allocators {
		for _, s := range a.Segments {
			name := fmt.Sprintf("pool %q, small %t", s.Private, s.Small)
			d := got[name]
			got[name] = division{
				d.Segments + s.Count, d.Reserved + s.Reserved, d.Allocated + s.Allocated, d.FreeBlocks + s.FreeBlocks,
				max(d.LargestFree, s.LargestFree), d.Whole + s.Releasable + s.Kept,
			}
		}
	}
	if len(p.Allocators) != 1 || len(want) != 5 || !maps.Equal(got, want) {
		t.Errorf("%d allocators, divided as %v; want %v", len(p.Allocators), got, want)
	}
}

// Every process, one of which is in the midst of its calls when the probes go on
// and off: its figures fit together although nobody waited for it.
func TestAll(t *testing.T) {
	busy := workload(t, testcuda.Workload, testcuda.LibsDefault)
	if err := busy.Send("repeat 1000000000 { cudaMalloc 4096; free cudaMalloc }"); err != nil {
		t.Fatal(err)
	}
	waiting := workload(t, testcuda.WorkloadNoFP, testcuda.LibsNoFP)
	r := start(t, nil, "-a").on()
	run(t, waiting, job())
	stats, err := waiting.Stats()
	if err != nil {
		t.Fatal(err)
	}
	r.named(stats.PID)
	if err := r.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	p := r.profile()
	// Its only thread may have been in one call, and held one allocation.
	p.whole(stats, "calls_without_entry", "frees_unmatched")
	wantPaths(p, stats.PID)
	for _, l := range p.Loss {
		if slices.Contains([]string{"calls_without_entry", "frees_unmatched"}, l.Name) && l.Value > 1 {
			t.Errorf("%d %s", l.Value, l.Name)
		}
	}
	for _, got := range p.Processes {
		if got.PID == busy.PID() && (got.Allocated == 0 || got.InUse < 0 || got.InUse > 4096) {
			t.Errorf("the busy process allocated %d bytes and has %d in use; it never held more than 4096", got.Allocated, got.InUse)
		}
	}
}

func TestKernelThread(t *testing.T) {
	if comm, _ := os.ReadFile("/proc/2/comm"); string(comm) != "kthreadd\n" {
		t.Skip("this PID namespace shows no thread of the kernel's")
	}
	out, err := exec.Command(binary, "-p", "2", "-d", "1s", "-o", filepath.Join(t.TempDir(), "x.json")).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "that is a kernel thread") {
		t.Errorf("a thread of the kernel's was not refused: %v: %s", err, out)
	}
}

// programs counts the tracer's programs in the kernel, by the names that it shows.
func programs(t *testing.T) (n int) {
	t.Helper()
	symbols, err := os.ReadFile("/proc/kallsyms")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(symbols)) {
		if strings.Contains(line, "bpf_prog_") && strings.Contains(line, "_gm_") {
			n++
		}
	}
	return n
}

// What the runs before loaded and attached is gone.
func TestNothingLeft(t *testing.T) {
	left := -1
	for end := time.Now().Add(5 * time.Minute); left != 0 && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		left = programs(t) // the kernel frees them a moment later
	}
	if left != 0 {
		t.Errorf("%d programs left in the kernel", left)
	}
	if events, err := os.ReadFile("/sys/kernel/tracing/uprobe_events"); err == nil && len(events) > 0 {
		t.Errorf("probes left: %s", events)
	}
}
