package checks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

// patience bounds each run of the tracer's: an emulated processor is twenty times
// slower than a real one.
const patience = 5 * time.Minute

// binary is what users run: $GPUMEMTRACE, or built here.
var binary = os.Getenv("GPUMEMTRACE")

func TestMain(m *testing.M) {
	os.Exit(func() int {
		if binary != "" {
			return m.Run()
		}
		dir, err := os.MkdirTemp("", "gpumemtrace-test-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		if err := os.Chmod(dir, 0o755); err != nil { // another user runs it too
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		binary = filepath.Join(dir, "gpumemtrace")
		// Without what a debugger needs, it is linked in half the time.
		if out, err := exec.Command("go", "build", "-ldflags=-w", "-o", binary, "../../../cmd/gpumemtrace").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build the program under test: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// A trace is a run of the tracer's.
type trace struct {
	*testing.T
	cmd    *exec.Cmd
	in     io.WriteCloser
	output string // the profile, as JSON
	ready  string // is there once the probes are on
	stdout bytes.Buffer
	stderr bytes.Buffer
	ended  chan struct{}
}

// start begins a run with a profile as JSON. env is beside this process's.
func start(t *testing.T, env []string, args ...string) *trace {
	t.Helper()
	return startAs(t, nil, env, args...)
}

// startAs begins it as another user, if there is one in as.
func startAs(t *testing.T, as *syscall.SysProcAttr, env []string, args ...string) *trace {
	t.Helper()
	dir, err := os.MkdirTemp("", "checks-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if as != nil {
		if err := os.Chown(dir, int(as.Credential.Uid), int(as.Credential.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	r := &trace{T: t, output: filepath.Join(dir, "profile.json"), ready: filepath.Join(dir, "ready"), ended: make(chan struct{})}
	r.cmd = exec.CommandContext(ctx, binary, append([]string{"--native", "all", "-o", r.output, "--ready-file", r.ready}, args...)...)
	r.cmd.SysProcAttr = as
	r.cmd.WaitDelay = time.Second // a job that outlives the tracer keeps its output
	r.cmd.Env = append(os.Environ(), env...)
	r.cmd.Stdout, r.cmd.Stderr = &r.stdout, &r.stderr
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		r.cmd.Wait()
		close(r.ended)
	}()
	t.Cleanup(func() {
		r.cmd.Process.Kill()
		<-r.ended
	})
	return r
}

// on waits until the probes are on.
func (r *trace) on() *trace {
	r.Helper()
	for {
		if _, err := os.Stat(r.ready); err == nil {
			return r
		} else if !errors.Is(err, fs.ErrNotExist) {
			r.Fatal(err)
		}
		select {
		case <-r.ended:
			r.Fatalf("the tracer ended before its probes were on:\n%s", r.stderr.String())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// shows waits until what the tracer writes when it is asked is as a test wants it.
func (r *trace) shows(wanted func(p profile) bool) {
	r.Helper()
	for n := 1; ; n++ {
		if err := r.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
			r.Fatal(err)
		}
		path := strings.TrimSuffix(r.output, ".json") + fmt.Sprintf(".%06d.json", n)
		text, err := os.ReadFile(path)
		for ; errors.Is(err, fs.ErrNotExist); text, err = os.ReadFile(path) {
			select {
			case <-r.ended:
				r.Fatalf("the tracer ended before it showed what is wanted:\n%s", r.stderr.String())
			case <-time.After(20 * time.Millisecond):
			}
		}
		p := profile{T: r.T}
		if err := errors.Join(err, json.Unmarshal(text, &p)); err != nil {
			r.Fatal(err)
		}
		if wanted(p) {
			return
		}
	}
}

// profile waits for the end of the run, and reads what it wrote.
func (r *trace) profile() profile {
	r.Helper()
	<-r.ended
	if code := r.cmd.ProcessState.ExitCode(); code != 0 {
		r.Fatalf("exit code %d:\n%s", code, r.stderr.String())
	}
	text, err := os.ReadFile(r.output)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() {
		if r.Failed() {
			r.Logf("the tracer said:\n%s", r.stderr.String())
		}
	})
	p := profile{T: r.T}
	if err := json.Unmarshal(text, &p); err != nil {
		r.Fatal(err)
	}
	return p
}

// workload starts a job that waits for its script.
func workload(t *testing.T, program testcuda.Program, libs testcuda.Libs) *testcuda.Process {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	p, err := testcuda.Start(ctx, testcuda.Get(t), program, testcuda.Options{Libs: libs})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	run(t, p, "init")
	return p
}

// run has a workload do what a script says, and returns what it says to that.
func run(t *testing.T, p *testcuda.Process, script string) []string {
	t.Helper()
	lines, err := p.Run(script)
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// A profile is what the tracer wrote, as far as it is looked at here.
type profile struct {
	*testing.T `json:"-"`

	Meta struct {
		StackMode string `json:"stack_mode"`
	} `json:"meta"`
	Processes []struct {
		PID         int   `json:"pid"`
		InUse       int64 `json:"inuse_bytes"`
		Allocated   int64 `json:"allocated_bytes"`
		LiveObjects int64 `json:"live_objects"`
	} `json:"processes"`
	Locations []struct {
		Lines []struct {
			Function string `json:"function"`
			File     string `json:"file"`
		} `json:"lines"`
	} `json:"locations"`
	Samples []struct {
		Stack  []int `json:"stack"` // the leaf first
		Labels struct {
			Kind string `json:"kind"`
			PID  int    `json:"pid"`
		} `json:"labels"`
		Values struct {
			Objects int64 `json:"alloc_objects"`
			InUse   int64 `json:"inuse_bytes"`
		} `json:"values"`
	} `json:"samples"`
	Allocators []snapshot.Allocator `json:"allocators"`
	Loss       []struct {
		Name  string `json:"name"`
		Value uint64 `json:"value"`
	} `json:"loss"`
	Notes []string `json:"notes"`
}

// whole fails unless the profile's figures of a process are those of the driver's
// own ledger, and nothing was lost but what is named.
func (p profile) whole(want *testcuda.Stats, lost ...string) {
	p.Helper()
	var inUse, allocated, live int64
	for _, kind := range []string{"device", "async"} {
		inUse += want.Live[kind].Bytes
		live += want.Live[kind].Objects
	}
	for _, api := range []string{"cuMemAlloc_v2", "cuMemAllocAsync"} {
		allocated += int64(want.APIs[api].Bytes)
	}
	found := false
	for _, got := range p.Processes {
		if got.PID != want.PID {
			continue
		}
		found = true
		if got.InUse != inUse || got.Allocated != allocated || got.LiveObjects != live {
			p.Errorf("process %d: %d bytes in use, %d allocated, %d live objects; the driver says %d, %d, %d",
				got.PID, got.InUse, got.Allocated, got.LiveObjects, inUse, allocated, live)
		}
	}
	if !found || allocated == 0 {
		p.Errorf("process %d is not in the profile, or allocated nothing", want.PID)
	}
	p.lostNothing(lost...)
}

// lostNothing fails if something was lost but what is named and names of frames.
func (p profile) lostNothing(but ...string) {
	p.Helper()
	for _, l := range p.Loss {
		if l.Value != 0 && !strings.HasPrefix(l.Name, "unnamed_") && !slices.Contains(but, l.Name) {
			p.Errorf("lost: %d %s", l.Value, l.Name)
		}
	}
}

// inUse returns the bytes that are in use, by their kind.
func (p profile) inUse() map[string]int64 {
	inUse := map[string]int64{}
	for _, s := range p.Samples {
		inUse[s.Labels.Kind] += s.Values.InUse
	}
	return inUse
}

// calls counts a process's calls that allocated by the functions in their stacks
// that are wanted, the outermost first.
func (p profile) calls(pid int, wanted func(function, file string) bool) map[string]int64 {
	n := map[string]int64{}
	for _, s := range p.Samples {
		if s.Labels.PID != 0 && s.Labels.PID != pid || s.Labels.Kind != "device" && s.Labels.Kind != "async" {
			continue
		}
		var path []string
		for _, location := range slices.Backward(s.Stack) {
			for _, line := range slices.Backward(p.Locations[location].Lines) {
				if wanted(line.Function, line.File) {
					path = append(path, line.Function)
				}
			}
		}
		n[strings.Join(path, " ")] += s.Values.Objects
	}
	return n
}

// memoized fails unless the memo knew at least 99 % of the stacks that came again.
func (p profile) memoized() {
	p.Helper()
	if want := "unwound, verified memo"; p.Meta.StackMode != want {
		p.Errorf("stacks: %s; want %s", p.Meta.StackMode, want)
	}
	var known, unwound, unfit int
	p.note("stacks: %d from the memo, %d unwound, %d of them not fit for the memo", &known, &unwound, &unfit)
	different := map[string]bool{}
	for _, s := range p.Samples {
		different[fmt.Sprint(s.Stack)] = true
	}
	again := max(0, unwound-len(different))
	p.Logf("%d stacks from the memo, %d unwound, %d different", known, unwound, len(different))
	if known == 0 || 100*again > known+again {
		p.Errorf("%d of %d stacks that came again were not known to the memo", again, known+again)
	}
}

// note reads the values of the note that has this format.
func (p profile) note(format string, values ...any) {
	p.Helper()
	for _, note := range p.Notes {
		if n, _ := fmt.Sscanf(note, format, values...); n == len(values) {
			return
		}
	}
	p.Errorf("no note is like %q: %q", format, p.Notes)
}
