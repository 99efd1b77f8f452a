package probes

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

// kernelObjects are the BPF objects that a process holds, by kind and id.
// /proc/PID/fdinfo, one line each.
func kernelObjects(t *testing.T, pid int) map[string][]uint32 {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	objects := map[string][]uint32{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue // closed meanwhile
		}
		for line := range strings.Lines(string(text)) {
			for _, kind := range []string{"link_id", "prog_id", "map_id"} {
				var id uint32
				if n, _ := fmt.Sscanf(line, kind+":\t%d", &id); n == 1 {
					objects[kind] = append(objects[kind], id)
				}
			}
		}
	}
	return objects
}

// alive counts the objects that the kernel still has. It opens no map: to open
// a prog array that is being released can leak it (prog_array_map_clear in
// kernel/bpf/arraymap.c).
func alive(t *testing.T, objects map[string][]uint32) (n int) {
	t.Helper()
	runtime.GC() // the memory through which constants were set holds their map
	found := func(is bool, err error) {
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("look for an object: %v", err)
		}
		if is && err == nil {
			n++
		}
	}
	for _, id := range objects["link_id"] {
		l, err := link.NewFromID(link.ID(id))
		if err == nil {
			l.Close()
		}
		found(true, err)
	}
	for _, id := range objects["prog_id"] {
		next, err := ebpf.ProgramGetNextID(ebpf.ProgramID(id - 1))
		found(next == ebpf.ProgramID(id), err)
	}
	for _, id := range objects["map_id"] {
		next, err := ebpf.MapGetNextID(ebpf.MapID(id - 1))
		found(next == ebpf.MapID(id), err)
	}
	return n
}

func TestCloseLeavesNothing(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	tr, err := Open(Options{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tr.Target(p.PID()); err != nil {
		t.Fatal(err)
	}
	held := kernelObjects(t, os.Getpid())
	if len(held["link_id"]) < 4 || len(held["prog_id"]) < 5 || len(held["map_id"]) < 6 {
		t.Fatalf("holds %v", held)
	}
	if err := tr.Close(); err != nil {
		t.Fatal(err)
	}
	// What is freed in the background is free a grace period later.
	eventually(t, "the kernel to free everything", func() bool { return alive(t, held) == 0 })
	run(t, p, "init", "row cuMemAlloc_v2") // and the program runs on
	if left := kernelObjects(t, os.Getpid()); len(left) != 0 {
		t.Errorf("still open: %v", left)
	}
}

// A failingTaker takes no stacks.
type failingTaker struct {
	StackTaker
	load func() error
}

func (f failingTaker) Load(map[string]*ebpf.Map, map[string]any, ebpf.AttachType, *btf.Cache) (*ebpf.Program, error) {
	return nil, f.load()
}

// A start that fails midway leaves as little.
func TestFailedOpenLeavesNothing(t *testing.T) {
	needTracing(t)
	var held map[string][]uint32
	wrong := errors.New("no such return program")
	_, err := Open(Options{Stacks: failingTaker{load: func() error {
		held = kernelObjects(t, os.Getpid())
		return wrong
	}}})
	if !errors.Is(err, wrong) {
		t.Fatalf("Open: %v, want %v", err, wrong)
	}
	if len(held["map_id"]) == 0 {
		t.Fatal("nothing was loaded yet")
	}
	eventually(t, "the kernel to free everything", func() bool { return alive(t, held) == 0 })
}

const killedTracer = "GPUMEMTRACE_TEST_KILLED_TRACER"

// A tracer that is killed leaves nothing: its probes are its files.
func TestKilledTracerLeavesNothing(t *testing.T) {
	if pid := os.Getenv(killedTracer); pid != "" {
		holdProbes(t, pid)
	}
	p := start(t, testcuda.Workload, testcuda.Options{})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^TestKilledTracerLeavesNothing$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", killedTracer, p.PID()))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "probing" {
		t.Log(lines.Text())
	}
	held := kernelObjects(t, cmd.Process.Pid)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if len(held["link_id"]) < 4 {
		t.Fatalf("it held %v", held)
	}
	eventually(t, "the kernel to free everything", func() bool { return alive(t, held) == 0 })
	run(t, p, "init", "row cuMemAlloc_v2")
}

// holdProbes traces until it is killed.
func holdProbes(t *testing.T, pid string) {
	var n int
	if _, err := fmt.Sscan(pid, &n); err != nil {
		t.Fatal(err)
	}
	tr := openTrace(t, Options{})
	tr.target(n)
	fmt.Println("probing")
	if err := tr.Run(tr, nil); err != nil {
		t.Fatal(err)
	}
}
