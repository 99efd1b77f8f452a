package session_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
	"github.com/gpumemtrace/gpumemtrace/internal/source/session"
	"github.com/gpumemtrace/gpumemtrace/internal/source/unwind"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

func inuse(s *snapshot.Snapshot) (sum int64) {
	for _, x := range s.Samples {
		sum += x.InuseBytes
	}
	return sum
}

func processOf(s *snapshot.Snapshot, pid int) snapshot.Process {
	for _, x := range s.Processes {
		if x.PID == pid {
			return x
		}
	}
	return snapshot.Process{}
}

func counterOf(t *testing.T, s *snapshot.Snapshot, name string) uint64 {
	t.Helper()
	for _, c := range s.Loss {
		if c.Name == name {
			return c.Value
		}
	}
	t.Fatalf("no counter %s", name)
	return 0
}

// Memory of processes that ended is not in use, while others live and after the
// last one; what it was at its highest stays.
func TestEndedIsNotInUse(t *testing.T) {
	const gib = int64(1) << 30
	p := start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "init")
	s := trace(t, session.Options{PIDs: []int{p.PID()}})
	run(t, p, "cuMemAlloc_v2 4096")
	var children []int
	for range 5 {
		var child int
		lines := run(t, p, "fork { init; cuMemAlloc_v2 1g }")
		if _, err := fmt.Sscanf(lines[0], "child %d", &child); err != nil {
			t.Fatal(err)
		}
		children = append(children, child)
	}
	check := func(what string, snap *snapshot.Snapshot) string {
		if got := inuse(snap); got != 4096 {
			return fmt.Sprintf("%s: %d bytes in use, want 4096", what, got)
		}
		for _, child := range children {
			x := processOf(snap, child)
			if !x.Exited || x.Inuse != 0 || x.LiveObjects != 0 || x.Peak != gib || x.Allocated != gib {
				return fmt.Sprintf("%s: child %+v", what, x)
			}
		}
		return ""
	}
	eventually(t, func() string { return check("while the parent lives", s.Snapshot(true)) })
	if snap := s.Snapshot(true); len(snap.Live) != 1 {
		t.Errorf("%d live rows, want 1", len(snap.Live))
	}
	// Later than the ends of processes that end as one job.
	time.Sleep(2200 * time.Millisecond)
	if _, _, err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	wait(t, "the end of the target", s.Done())
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if text := check("after the end", s.Snapshot(true)); text != "" {
		t.Error(text)
	}
}

// A trace of every process goes on when the processes that it saw have ended,
// and shows each of them once.
func TestAllGoesOn(t *testing.T) {
	s := trace(t, session.Options{All: true})
	long := start(t, testcuda.Workload, testcuda.Options{})
	run(t, long, "init")
	eventually(t, func() string { // its library has probes
		run(t, long, "cuMemAlloc_v2 4096", "free all")
		if processOf(s.Snapshot(false), long.PID()).PID == 0 {
			return "the first process is not seen"
		}
		return ""
	})
	var pids []int
	for range 3 {
		p := start(t, testcuda.Workload, testcuda.Options{})
		run(t, p, "init", "cuMemAlloc_v2 1g")
		pids = append(pids, p.PID())
		if _, _, err := p.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	ended := func(snap *snapshot.Snapshot) (n int) {
		for _, pid := range pids {
			if x := processOf(snap, pid); x.Exited && x.Inuse == 0 && x.Peak == 1<<30 {
				n++
			}
		}
		return n
	}
	eventually(t, func() string {
		if n := ended(s.Snapshot(false)); n != 3 {
			return fmt.Sprintf("%d ended processes, want 3", n)
		}
		return ""
	})
	select {
	case <-s.Done():
		t.Fatal("the trace ended with the processes")
	default:
	}
	report := s.Report(true)
	if n := ended(report); n != 3 {
		t.Errorf("%d ended processes in the report, want 3", n)
	}
	again := s.Report(false)
	for _, pid := range pids {
		if x := processOf(again, pid); x.PID != 0 {
			t.Errorf("process %d is reported again", pid)
		}
	}
	run(t, long, "repeat 23 cuMemAlloc_v2 4096")
	wantLive(t, s, long)
}

// The children that a launcher has already are traced with it.
func TestRunningChildren(t *testing.T) {
	kit := testcuda.Get(t)
	workload := kit.Path(testcuda.Workload)
	sh := exec.Command("sh", "-c", `"$0" "$1" & "$0" "$1" & wait`, workload, "init; sleep 1500; repeat 23 cuMemAlloc_v2 4096; sleep 60000")
	sh.Env = append(sh.Environ(), kit.Env(testcuda.LibsDefault)...)
	if err := sh.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, child := range proc.Children(sh.Process.Pid) {
			syscall.Kill(child, syscall.SIGKILL)
		}
		sh.Process.Kill()
		sh.Wait()
	})
	eventually(t, func() string {
		running := 0
		for _, child := range proc.Children(sh.Process.Pid) {
			if proc.Comm(child) == "workload" {
				running++
			}
		}
		if running != 2 {
			return fmt.Sprintf("%d children run", running)
		}
		return ""
	})
	s := trace(t, session.Options{PIDs: []int{sh.Process.Pid}})
	if want := fmt.Sprintf("pid %d (sh) and 2 child processes", sh.Process.Pid); s.Target() != want {
		t.Errorf("target %q, want %q", s.Target(), want)
	}
	eventually(t, func() string {
		if got := inuse(s.Snapshot(false)); got != 2*23*4096 {
			return fmt.Sprintf("%d bytes in use by the children, want %d", got, 2*23*4096)
		}
		return ""
	})
}

// The first mapping is the program's, whether or not a frame lies in it: readers
// of pprof take it for what was profiled.
func TestFirstMapping(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "init")
	s := trace(t, session.Options{PIDs: []int{p.PID()}})
	for _, command := range []string{"echo nothing", "cuMemAlloc_v2 4096"} {
		run(t, p, command)
		eventually(t, func() string {
			snap := s.Snapshot(false)
			if len(snap.Mappings) == 0 {
				return "no mapping"
			}
			if m := snap.Mappings[0]; filepath.Base(m.Path) != "workload" || m.Start == 0 || m.Limit <= m.Start {
				return fmt.Sprintf("the first mapping is %+v", m)
			}
			n := 0
			for _, m := range snap.Mappings {
				if filepath.Base(m.Path) == "workload" {
					n++
				}
			}
			if n != 1 {
				return fmt.Sprintf("the program has %d mappings", n)
			}
			return ""
		})
	}
}

// An exec brings another program: a command that is traced from its start does
// so first of all.
func TestFirstMappingAfterExec(t *testing.T) {
	kit := testcuda.Get(t)
	p := start(t, testcuda.Workload, testcuda.Options{})
	s := trace(t, session.Options{PIDs: []int{p.PID()}})
	run(t, p, "exec "+kit.Path(testcuda.WorkloadNoFP), "echo up")
	eventually(t, func() string {
		snap := s.Snapshot(false)
		if len(snap.Mappings) == 0 {
			return "no mapping"
		}
		if m := snap.Mappings[0]; m.Path != kit.Path(testcuda.WorkloadNoFP) || m.Start == 0 {
			return fmt.Sprintf("the first mapping is %+v", m)
		}
		return ""
	})
}

// While a child imports PyTorch and others begin and end, its analysis keeps no
// event of another target waiting until the ring buffer is full.
func TestEventsDoNotWaitForAnalysis(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector makes the reader slower than the program")
	}
	hammer := start(t, testcuda.Hammer, testcuda.Options{Args: []string{"-threads", "1", "-seconds", "8", "-wait"}})
	if _, err := hammer.Expect("ready"); err != nil {
		t.Fatal(err)
	}
	shell := exec.Command("sh", "-c", `sleep 2; /usr/bin/python3 -c 'import torch' & while :; do /bin/true; sleep 0.02; done`)
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	defer shell.Wait()
	defer shell.Process.Kill()
	s := trace(t, session.Options{PIDs: []int{hammer.PID(), shell.Process.Pid}, Stacks: unwind.Auto})
	if err := hammer.Send("go"); err != nil {
		t.Fatal(err)
	}
	if _, code, err := hammer.Wait(); err != nil || code != 0 {
		t.Fatalf("exit %d, %v", code, err)
	}
	var snap *snapshot.Snapshot
	eventually(t, func() string {
		snap = s.Snapshot(false)
		if !processOf(snap, hammer.PID()).Exited {
			return "its end is not seen"
		}
		return ""
	})
	// Where the reader waits for an analysis, most are lost; on a busy machine a few.
	if n := counterOf(t, snap, "events_ring_full"); n > snap.Meta.Events/2 || snap.Meta.Events < 10_000 {
		t.Errorf("%d events lost of %d", n, snap.Meta.Events+n)
	}
}

// A process that runs already when everything is traced is analysed before it is
// probed: its first stack is complete.
func TestRunningProcessesAreAnalysed(t *testing.T) {
	p := start(t, testcuda.WorkloadNoFP, testcuda.Options{Libs: testcuda.LibsNoFP})
	run(t, p, "init")
	s := trace(t, session.Options{All: true, Stacks: unwind.Auto})
	run(t, p, "repeat 23 cuMemAlloc_v2 4096")
	snap := wantLive(t, s, p)
	for _, x := range snap.Samples {
		if x.PID == p.PID() && x.Stack[len(x.Stack)-1].Lines[0].Function != "_start" {
			t.Errorf("a stack ends with %+v", x.Stack[len(x.Stack)-1].Lines[0])
		}
	}
	if n := counterOf(t, snap, "stacks_unknown_process"); n != 0 {
		t.Errorf("%d stacks of processes that were not analysed", n)
	}
	counterOf(t, snap, "unwinder_runs_missed") // is there to be seen
}

// An exec, which is heard of after the mappings that follow it, does not take
// the new image's analysis away, nor its memo.
func TestAnalysedAfterExec(t *testing.T) {
	kit := testcuda.Get(t)
	p := start(t, testcuda.Workload, testcuda.Options{})
	s := trace(t, session.Options{PIDs: []int{p.PID()}, Stacks: unwind.Always})
	run(t, p, "exec "+kit.Path(testcuda.Workload), "init", "echo up")
	before := 0
	eventually(t, func() string { // once it is analysed
		run(t, p, "repeat 1000 cuMemAlloc_v2 4096")
		hits := 0
		for _, note := range wantLive(t, s, p).Notes {
			if _, err := fmt.Sscanf(note, "stacks: %d from the memo", &hits); err == nil {
				break
			}
		}
		of := hits - before
		if before = hits; of < 900 {
			return fmt.Sprintf("%d of 1000 stacks came from the memo", of)
		}
		return ""
	})
}
