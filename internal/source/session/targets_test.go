package session_test

import (
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

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/source/session"
	"github.com/gpumemtrace/gpumemtrace/internal/source/unwind"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

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
