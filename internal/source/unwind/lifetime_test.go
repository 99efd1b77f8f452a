package unwind

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
)

// kernelObjects counts this machine's programs, maps and links that have a name
// of ours or of the unwinder's. Other tests' come and go, so callers wait.
func kernelObjects(t testing.TB) map[ebpf.ProgramID]string {
	t.Helper()
	have := make(map[ebpf.ProgramID]string)
	for id, err := ebpf.ProgramGetNextID(0); err == nil; id, err = ebpf.ProgramGetNextID(id) {
		prog, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue
		}
		info, err := prog.Info()
		prog.Close()
		if err == nil && (strings.HasPrefix(info.Name, "gm_unwind") || strings.HasPrefix(info.Name, "gm_call_exit_u")) {
			have[id] = info.Name
		}
	}
	return have
}

// wantOnly fails unless all programs but those of before are gone soon.
func wantOnly(t testing.TB, before map[ebpf.ProgramID]string) {
	t.Helper()
	var left []string
	for range 6000 {
		runtime.GC()
		left = nil
		for id, name := range kernelObjects(t) {
			if before[id] == "" {
				left = append(left, fmt.Sprint(id, " ", name))
			}
		}
		if len(left) == 0 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Errorf("left behind: %v", left)
}

func TestCloseLeavesNothing(t *testing.T) {
	before := kernelObjects(t)
	t.Run("open", func(t *testing.T) {
		p := startTarget(t, buildCalls(t), "3")
		c := newCapture(t, Options{}, p.pid)
		c.attach(buildLibrary(t), symbol, 1)
		p.run()
		c.detach(4)
		if len(kernelObjects(t)) == len(before) {
			t.Error("the test does not see the programs")
		}
	})
	wantOnly(t, before)
}

// A tracer that is killed takes its probes with it, and the traced process
// lives on.
func TestKillLeavesNothing(t *testing.T) {
	if dir := os.Getenv("UNWIND_TEST_CHILD"); dir != "" {
		built.Do(func() { built.dir = dir })
		p := startTarget(t, buildCalls(t), "3")
		c := newCapture(t, Options{}, p.pid)
		c.attach(buildLibrary(t), symbol, 1)
		fmt.Println("attached")
		time.Sleep(time.Minute)
		return
	}
	before := kernelObjects(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestKillLeavesNothing$", "-test.v")
	cmd.Env = append(os.Environ(), "UNWIND_TEST_CHILD="+workDir(t))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	attached := false
	for s := bufio.NewScanner(out); !attached && s.Scan(); {
		attached = s.Text() == "attached"
	}
	if !attached || len(kernelObjects(t)) == len(before) {
		t.Error("child attached nothing")
	}
	cmd.Process.Kill()
	cmd.Wait()
	wantOnly(t, before)
}

// A start that fails half-way leaves nothing either.
func TestFailedStartLeavesNothing(t *testing.T) {
	before := kernelObjects(t)
	_, err := Start(context.Background(), Options{Constants: map[string]any{"cfg_verify_stacks": uint64(1)}})
	if err == nil {
		t.Fatal("started with a constant of the wrong size")
	}
	wantOnly(t, before)
}

// The start leaves this process's limits, which its children inherit, as they were,
// whether it may raise RLIMIT_MEMLOCK or not.
func TestStartLeavesLimits(t *testing.T) {
	before, err := os.ReadFile("/proc/self/limits")
	if err != nil {
		t.Fatal(err)
	}
	u, err := Start(context.Background(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	if after, err := os.ReadFile("/proc/self/limits"); err != nil || string(after) != string(before) {
		t.Errorf("%v, limits\n%s, before\n%s", err, after, before)
	}
}

// A process that replaces its image by another Python, or by the same at other
// addresses, has Python frames as before.
func TestPythonAfterExec(t *testing.T) {
	pythons := installedPythons()
	if len(pythons) == 0 {
		skip(t, "no Python")
	}
	first, last := pythons[0], pythons[len(pythons)-1]
	for _, c := range [][2]string{{first, last}, {last, first}, {last, last}} {
		t.Run(c[0]+" "+c[1], func(t *testing.T) {
			library := buildLibrary(t)
			p := startTarget(t, c[0], "testdata/execs.py")
			capture := newCapture(t, Options{}, p.pid)
			capture.attach(library, symbol, 1)
			before := capture.u.generation(t, p.pid)
			fmt.Fprintln(p.in, "execute", c[1])
			p.expect("ready")
			capture.u.Ended(p.pid)
			capture.u.Changed(p.pid, 0)
			for deadline := time.Now().Add(5 * time.Minute); capture.u.generation(t, p.pid) <= before; {
				if time.Now().After(deadline) {
					t.Fatal("not analysed anew within 5 s")
				}
				time.Sleep(20 * time.Millisecond)
			}
			p.ask("function", 1)
			capture.detach(1)
			for id := range capture.counts {
				names := capture.names(id)
				if capture.stacks[id].Err != nil || !slices.Contains(names, "function execs.py:18") {
					t.Errorf("%v %v", capture.stacks[id].Err, names)
				}
			}
		})
	}
}
