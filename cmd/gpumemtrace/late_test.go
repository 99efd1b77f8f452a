package main

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

// usesNVML has one GPU, and one process that uses it: both numbers are in a file.
const usesNVML = `
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef struct { uint64_t total, free, used; } memory;
typedef struct { uint32_t pid; uint64_t used; } process;
static process uses(void) {
	unsigned pid = 0;
	unsigned long used = 0;
	FILE *f = fopen(getenv("NVML_USED"), "r");
	if (f) {
		if (fscanf(f, "%u %lu", &pid, &used) != 2)
			pid = 0;
		fclose(f);
	}
	return (process){pid, used};
}
int nvmlInit(void) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int r) { return r == 7 ? "Insufficient Size" : "Stand-in Error"; }
int nvmlSystemGetDriverVersion(char *s, unsigned n) { strncpy(s, "580.1", n); return 0; }
int nvmlDeviceGetCount(unsigned *n) { *n = 1; return 0; }
int nvmlDeviceGetHandleByIndex(unsigned i, void **d) { *d = (void *)1; return 0; }
int nvmlDeviceGetHandleByUUID(const char *u, void **d) { *d = (void *)1; return 0; }
int nvmlDeviceGetUUID(void *d, char *s, unsigned n) { strncpy(s, "GPU-late", n); return 0; }
int nvmlDeviceGetMemoryInfo(void *d, memory *m) { uint64_t used = uses().used; *m = (memory){1ull << 36, (1ull << 36) - used, used}; return 0; }
int nvmlDeviceGetComputeRunningProcesses(void *d, unsigned *n, process *p) {
	if (*n < 1) { *n = 1; return 7; }
	*n = 1;
	p[0] = uses();
	return 0;
}
`

// compile builds a shared library, and returns its path.
func compile(t *testing.T, name, source string, args ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), name)
	if text, err := exec.Command("gcc", append([]string{"-O1", "-w", "-shared", "-fPIC", "-o", out, source}, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, text)
	}
	return out
}

// A lateTrainer is testdata/late.py: a stand-in for PyTorch on the stand-in for CUDA.
type lateTrainer struct {
	*testing.T
	cmd  *exec.Cmd
	in   io.Writer
	out  *bufio.Reader
	used string           // the file that NVML reads
	Held map[string]int64 // bytes of blocks by holder
}

func trainsLate(t *testing.T) *lateTrainer {
	t.Helper()
	const python = "/usr/bin/python3"
	include, err := exec.Command(python, "-c", "import sysconfig; path = sysconfig.get_path('include'); open(path + '/Python.h'); print(path)").Output()
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("no headers of CPython: %v", err)
		}
		t.Skipf("no headers of CPython: %v", err)
	}
	module := compile(t, "standin.so", "../../internal/heap/testdata/standin.c", "-I", strings.TrimSpace(string(include)))
	p := &lateTrainer{T: t, cmd: exec.Command(python, "testdata/late.py"), used: filepath.Join(t.TempDir(), "used")}
	p.cmd.Env = append(append(os.Environ(), testcuda.Get(t).Env(testcuda.LibsDefault)...), "PYTHONPATH="+filepath.Dir(module), "NVML_USED="+p.used)
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.in, p.out = in, bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		p.cmd.Wait()
	})
	p.reads()
	return p
}

// reads has it say what it holds.
func (p *lateTrainer) reads() {
	p.Helper()
	line, err := p.out.ReadBytes('\n')
	if err == nil {
		p.Held = nil
		err = json.Unmarshal(line, p)
	}
	if err != nil {
		p.Fatal(err)
	}
}

func (p *lateTrainer) does(what string) {
	p.Helper()
	if _, err := io.WriteString(p.in, what+"\n"); err != nil {
		p.Fatal(err)
	}
	p.reads()
}

// A trace that attaches late divides all tensors, of before and of since then, by holder:
// each parameter, its gradient and its optimizer state by name, as the program has them.
func TestLateHolders(t *testing.T) {
	needTracing(t)
	source := filepath.Join(t.TempDir(), "nvml.c")
	if err := os.WriteFile(source, []byte(usesNVML), 0o600); err != nil {
		t.Fatal(err)
	}
	nvml := filepath.Dir(compile(t, "libnvidia-ml.so.1", source))
	for name, steps := range map[string][]string{
		"running":     {"step", "step"},
		"freeing":     {"step", "forget", "step"},
		"freeing old": {"forget"},
	} {
		t.Run(name, func(t *testing.T) {
			p := trainsLate(t)
			ready, run := filepath.Join(t.TempDir(), "ready"), filepath.Join(t.TempDir(), "run.gmt")
			v := command(t, "--stacks", "fp", "--ready-file", ready, "-p", strconv.Itoa(p.cmd.Process.Pid), "--tensors", "--holders", "1h", "--format", "json", "-o", "-", "-q", "--record", run)
			v.cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+nvml, "NVML_USED="+p.used)
			v.start()
			v.until("it is ready", func() bool { return exists(t, ready) })
			for _, step := range steps {
				p.does(step)
			}
			v.signal(syscall.SIGINT)
			p.check(v.ends(exitDone).stdout.String())
			top := command(t, "top", run, "--json", "--once", "--at", "end").start().ends(exitDone).stdout.String()
			if !strings.Contains(top, `"holder":"trainer.model.layers[2].weight.grad"`) {
				t.Errorf("top names no holder:\n%s", top)
			}
		})
	}
}

// A trace that attaches late says at once who holds what, without being asked.
func TestLateFirst(t *testing.T) {
	needTracing(t)
	source := filepath.Join(t.TempDir(), "nvml.c")
	if err := os.WriteFile(source, []byte(usesNVML), 0o600); err != nil {
		t.Fatal(err)
	}
	nvml := filepath.Dir(compile(t, "libnvidia-ml.so.1", source))
	for _, flags := range [][]string{nil, {"--holders", "off"}} {
		p := trainsLate(t)
		v := command(t, append(flags, "-p", strconv.Itoa(p.cmd.Process.Pid), "-o", "x.json")...)
		v.cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+nvml, "NVML_USED="+p.used)
		v.start()
		says := "tracing pid"
		if flags == nil {
			says = "trainer.model.layers[*].weight.grad"
		}
		v.until("it says "+says, func() bool { return strings.Contains(v.stderr.String(), says) })
		v.signal(syscall.SIGINT)
		v.ends(exitDone)
		if text := string(read(t, filepath.Join(v.cmd.Dir, "x.json"))); strings.Contains(text, "trainer.model") != (flags == nil) {
			t.Errorf("with %q it names holders", flags)
		}
	}
}

// check compares a trace's tensors with what the program holds.
func (p *lateTrainer) check(text string) {
	p.Helper()
	var trace struct {
		Locations []struct{ Lines []struct{ Function string } }
		Samples   []struct {
			Stack  []int
			Labels struct{ Kind, Holder, Category string }
			Values struct {
				Inuse int64 `json:"inuse_bytes"`
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &trace); err != nil {
		p.Fatal(err)
	}
	held := map[string]int64{}
	for _, s := range trace.Samples {
		old := slices.ContainsFunc(s.Stack, func(i int) bool { return trace.Locations[i].Lines[0].Function == state.LineOldTensors })
		if (s.Labels.Kind == "tensor" || s.Labels.Holder != "" || old) && s.Values.Inuse != 0 {
			held[s.Labels.Holder] += s.Values.Inuse
		}
		if role, ok := map[string]string{"grad": "gradient", "weight": "parameter", "bias": "parameter"}[s.Labels.Holder[strings.LastIndexByte(s.Labels.Holder, '.')+1:]]; ok && s.Labels.Category != role {
			p.Errorf("%s is %s", s.Labels.Holder, s.Labels.Category)
		}
	}
	// The stand-in's allocator cannot be read: what a block has beyond its tensor has no holder.
	for holder, whole := range p.Held {
		if end := whole - held[holder]; end > 0 && end < 1<<20 {
			held[holder], held[""] = whole, held[""]-end
		}
	}
	if held[""] == 0 {
		delete(held, "")
	}
	if d := cmp.Diff(p.Held, held); d != "" {
		p.Errorf("what is held (-program +trace):\n%s", d)
	}
}
