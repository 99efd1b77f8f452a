//go:build soak

package session

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/footprint"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// A talker is a program that is talked to by lines.
type talker struct {
	*testing.T
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Scanner
}

func talk(t *testing.T, args ...string) *talker {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return &talker{t, cmd, in, bufio.NewScanner(out)}
}

func (p *talker) say() {
	p.Helper()
	if _, err := fmt.Fprintln(p.in, "go"); err != nil {
		p.Fatal(err)
	}
}

func (p *talker) hear() string {
	p.Helper()
	if !p.out.Scan() {
		p.Fatalf("%s ended: %v", p.cmd.Path, p.cmd.Wait())
	}
	return p.out.Text()
}

// What a tracer takes of the machine, and what its state keeps.
type size struct {
	footprint.Footprint
	heap                 int // MiB
	stacks, procs, sites int
}

func (s *Session) size(t *testing.T) (f size) {
	t.Helper()
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	f.heap = int(m.HeapAlloc >> 20) // after a collection: what is live
	var err error
	if f.Footprint, err = footprint.Of(os.Getpid()); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	kept := s.state.Size()
	s.mu.Unlock()
	f.stacks, f.procs, f.sites = kept.Stacks, kept.Processes, kept.Sites
	return f
}

// A tracer that runs for months sees very many processes, stacks and libraries
// come and go. After three tenths of them, when each of its tables has been full,
// it takes no more of the machine, the last process is complete, and one that lived all
// the time is exact.
func TestChurn(t *testing.T) {
	const processes, stacks, libraries = 100_000, 80_000, 1_000
	dir := t.TempDir()
	for out, source := range map[string]string{"churn": "churn.c", "libcuda.so.1": "churnlib.c"} {
		args := []string{"-O1", "-g", "-fno-omit-frame-pointer", "-o", filepath.Join(dir, out), "testdata/" + source}
		if out != "churn" {
			args = append(args, "-shared", "-fPIC")
		}
		if text, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
			t.Fatalf("gcc: %v\n%s", err, text)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "libcuda.so.1"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range libraries + 1 {
		own := filepath.Join(dir, strconv.Itoa(i))
		if err := errors.Join(os.Mkdir(own, 0o755), os.WriteFile(filepath.Join(own, "libcuda.so.1"), text, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(dir, "churn")
	long := talk(t, program, "long", filepath.Join(dir, "libcuda.so.1"), strconv.Itoa(stacks))
	long.hear()

	s, err := Start(Options{All: true, Follow: true})
	if errors.Is(err, probes.ErrPrivilege) && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	began := time.Now()
	long.say()
	long.hear()
	long.hear() // every stack has come by twice
	short := talk(t, program, "short", dir, strconv.Itoa(libraries), strconv.Itoa(processes))
	var first size
	for part := range 10 {
		short.hear()
		f := s.size(t)
		var grown []string
		for same := 0; same < 10; same++ {
			if part < 3 {
				first = first.most(f) // what comes and goes, at its most
			} else if grown = f.grown(first); len(grown) == 0 {
				break // what a tracer kept would be there each time that one looks
			}
			time.Sleep(200 * time.Millisecond)
			before := f.procs
			if f = s.size(t); part >= 3 && f.procs < before {
				same = 0 // those whose end was missed are found one after the other
			}
		}
		t.Logf("%3.0f s, %d0%%: %+v", time.Since(began).Seconds(), part+1, f)
		for _, what := range grown {
			t.Error(what)
		}
		s.Report(state.Want{})
		short.say()
	}
	if err := short.cmd.Wait(); err != nil {
		t.Fatal(err)
	}

	last := talk(t, program, "long", filepath.Join(dir, strconv.Itoa(libraries), "libcuda.so.1"), "1000")
	last.hear()
	time.Sleep(time.Second) // its library has probes, and its mappings are known
	last.say()
	last.hear()
	long.say()
	held, err := strconv.ParseInt(long.hear(), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * pollTime) // what is in the ring buffer is read
	snap := s.Snapshot(state.Want{})
	if got := processOf(snap, long.cmd.Process.Pid).Inuse; got != held {
		t.Errorf("the long-lived process holds %d bytes, traced %d", held, got)
	}
	// It calls from its stacks again and again: those from before it was
	// analysed follow frame pointers.
	complete := 0
	for end := time.Now().Add(5 * time.Minute); complete != 1000 && time.Now().Before(end); time.Sleep(time.Second) {
		snap = s.Snapshot(state.Want{})
		complete = completeStacks(snap, last.cmd.Process.Pid)
	}
	if complete != 1000 {
		t.Errorf("the last process: %d of 1000 stacks complete", complete)
	}
	for _, c := range snap.Loss {
		if c.Value != 0 {
			t.Logf("%s = %d: %s", c.Name, c.Value, c.Help)
		}
		switch c.Name {
		case "events_ring_full", "stacks_dropped", "libraries_not_probed", "processes_not_traced", "runs_missed", "sites_full":
			if c.Value != 0 {
				t.Errorf("%s = %d", c.Name, c.Value)
			}
		}
	}
}

// most has the larger figure of each.
func (f size) most(g size) size {
	return size{f.Most(g.Footprint), max(f.heap, g.heap), max(f.stacks, g.stacks), max(f.procs, g.procs), max(f.sites, g.sites)}
}

// pollTime is longer than an event waits for its reader.
const pollTime = 100 * time.Millisecond

// grown says what is more than when three tenths had come by.
func (f size) grown(first size) []string {
	// A KiB kept of each of the 70,000 processes that come after that would be 68 MiB;
	// stacks come and go by a third between two sweeps.
	const slack = 34
	grown := f.Grown(first.Footprint, slack)
	for _, c := range []struct {
		what       string
		got, first int
		slack      int
	}{
		{"heap MiB", f.heap, first.heap, slack},
		{"stacks", f.stacks, first.stacks, first.stacks / 2}, // by when the last sweep was
		{"call sites", f.sites, first.sites, first.sites / 10},
		{"processes", f.procs, first.procs, 1024 / 10},
	} {
		if c.got > c.first+c.slack {
			grown = append(grown, fmt.Sprintf("%s: %d, %d after three tenths", c.what, c.got, c.first))
		}
	}
	return grown
}

// completeStacks counts the different stacks of a churn process that are named
// from the call to _start.
func completeStacks(s *snapshot.Snapshot, pid int) int {
	different := map[string]bool{}
	for _, x := range s.Samples {
		if text := functions(x.Stack); x.PID == pid && x.Process == "churn" && strings.HasPrefix(text, "cuMemAlloc_v2 walk") &&
			strings.Contains(text, " walk lasts main ") && strings.HasSuffix(text, " _start") {
			different[addresses(x.Stack)] = true
		}
	}
	return len(different)
}

func processOf(s *snapshot.Snapshot, pid int) snapshot.Process {
	for _, x := range s.Processes {
		if x.PID == pid {
			return x
		}
	}
	return snapshot.Process{}
}

func functions(stack []*snapshot.Location) string {
	var names []string
	for _, l := range stack {
		for _, x := range l.Lines {
			names = append(names, x.Function)
		}
	}
	return strings.Join(names, " ")
}

func addresses(stack []*snapshot.Location) string {
	var all []string
	for _, l := range stack {
		all = append(all, strconv.FormatUint(l.Address, 16))
	}
	return strings.Join(all, " ")
}
