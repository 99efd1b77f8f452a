package probes

import (
	"errors"

	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/source/clock"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
	"github.com/gpumemtrace/gpumemtrace/internal/source/rounds"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

// copyLibrary copies the stand-in's libcuda to a directory of its own, as a
// container has it.
func copyLibrary(tb testing.TB, dir string) string {
	tb.Helper()
	text, err := os.ReadFile(testcuda.Get(tb).LibCUDA)
	if err != nil {
		tb.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		tb.Fatal(err)
	}
	path := filepath.Join(dir, "libcuda.so.1")
	if err := os.WriteFile(path, text, 0o755); err != nil {
		tb.Fatal(err)
	}
	return path
}

// probes tells whether a library is probed. Others on this machine may be.
func (tr *trace) probes(library string) bool {
	return slices.Contains(tr.probedLibraries(), library)
}

// Probes go when the last process that maps the library has gone, and come back
// with the next one.
func TestProbesGoWithTheLastProcess(t *testing.T) {
	kit := testcuda.Get(t)
	tr := openTrace(t, Options{All: true, Follow: true})
	library := copyLibrary(t, t.TempDir())
	env := []string{"LD_LIBRARY_PATH=" + filepath.Dir(library) + ":" + filepath.Dir(kit.LibCUDA)}
	for range 2 {
		p := start(t, testcuda.Workload, testcuda.Options{Env: env})
		eventually(t, "the library's probes", func() bool { return tr.probes(library) })
		run(t, p, "init", "row cuMemAlloc_v2")
		tr.drain()
		if _, _, err := p.Wait(); err != nil {
			t.Fatal(err)
		}
		tr.drain() // its exit
		eventually(t, "the end of the probes", func() bool {
			tr.drain()
			tr.libs.detach(tr.libs.unused(time.Now().Add(linger), &rounds.Rounds[int]{})...)
			return !tr.probes(library)
		})
	}
}

// The mapping of a library and the exec before it reach the tracer by different
// ways. The later image keeps its probes, whichever is heard of first.
func TestProbesOutliveExec(t *testing.T) {
	t.Parallel() // it waits, for linger
	kit := testcuda.Get(t)
	tr := openTrace(t, Options{All: true, Follow: true})
	library := copyLibrary(t, t.TempDir())
	env := []string{"LD_LIBRARY_PATH=" + filepath.Dir(library) + ":" + filepath.Dir(kit.LibCUDA)}
	p := start(t, testcuda.Workload, testcuda.Options{Env: env})
	eventually(t, "the library's probes", func() bool { return tr.probes(library) })
	run(t, p, "exec "+kit.Path(testcuda.Workload), "echo up")
	time.Sleep(100 * time.Millisecond) // its mapping was told long ago
	tr.drain()                         // and the exec is read
	tr.libs.detach(tr.libs.unused(time.Now().Add(linger), &rounds.Rounds[int]{})...)
	if !tr.probes(library) {
		t.Fatal("a library that a process maps lost its probes")
	}
	run(t, p, "init", "row cuMemAlloc_v2")
	if n := tally(tr.drain()); n[call{"cuMemAlloc_v2", 0}] == 0 {
		t.Errorf("nothing is seen of the later image:%s", format(tr.events))
	}
	// What only the earlier image mapped is nobody's.
	if _, _, err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	tr.drain()
	eventually(t, "the end of the probes", func() bool { tr.drain(); return !tr.probes(library) })
}

// A process that ends before its library could be probed is counted: nothing of
// it was seen.
func TestUnseenProcesses(t *testing.T) {
	tr := openTrace(t, Options{All: true, Follow: true})
	m := mapping{pid: 1 << 30, time: clock.Monotonic(), Mapping: proc.Mapping{
		Start: 0x1000, End: 0x2000, Path: "/gone/libcuda.so.1", File: proc.FileID{Dev: 1, Ino: 2}}}
	if err := tr.finder.follow(m, Driver, claim{pid: m.pid, at: m.time}); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("a library of a process that is not there: %v", err)
	}
	if n := tr.counter("processes_unseen"); n != 1 {
		t.Errorf("%d processes unseen, want 1", n)
	}
	// Where the file has probes nothing is missed.
	tr.libs.mu.Lock()
	tr.libs.table[attachKey{m.File, Driver, 0}] = &probedFile{mappers: map[int]*mapper{0: {}}, attachment: &attachment{since: m.time - 1}}
	tr.libs.mu.Unlock()
	if err := tr.finder.follow(m, Driver, claim{pid: m.pid, at: m.time}); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("a library of a process that is not there: %v", err)
	}
	if n := tr.counter("processes_unseen"); n != 1 {
		t.Errorf("%d processes unseen, want 1", n)
	}
	tr.libs.mu.Lock()
	delete(tr.libs.table, attachKey{m.File, Driver, 0})
	tr.libs.mu.Unlock()
}

// A process in a stream of short ones, each with a library of its own, is either
// traced or counted.
func TestShortProcessesWithNewLibraries(t *testing.T) {
	kit := testcuda.Get(t)
	tr := openTrace(t, Options{All: true, Follow: true})
	const n = 20
	dir := t.TempDir()
	pids := map[uint32]bool{}
	for i := range n {
		library := copyLibrary(t, filepath.Join(dir, fmt.Sprint(i)))
		env := []string{"LD_LIBRARY_PATH=" + filepath.Dir(library) + ":" + filepath.Dir(kit.LibCUDA)}
		p := start(t, testcuda.Workload, testcuda.Options{Env: env, Args: []string{"init; row cuMemAlloc_v2"}})
		pids[uint32(p.PID())] = true
		if _, _, err := p.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[uint32]bool{}
	for _, e := range tr.drain() {
		if e.Op == event.OpAlloc && pids[e.Proc.PID] {
			seen[e.Proc.PID] = true
		}
	}
	eventually(t, "word of every process", func() bool {
		return tr.counter("libraries_probed_late")+tr.counter("processes_unseen") >= n
	})
	t.Logf("%d of %d processes seen; %d libraries late, %d processes unseen, longest gap %v", len(seen), n,
		tr.counter("libraries_probed_late"), tr.counter("processes_unseen"), tr.longestGap())
}

// A hearing taker follows frame pointers, and says what it is told of mappings.
type hearing struct{ mapped func(pid int) }

func (hearing) Load(map[string]*ebpf.Map, map[string]any, ebpf.AttachType, *btf.Cache) (*ebpf.Program, error) {
	return nil, nil
}
func (h hearing) Mapped(pid int, _ proc.Mapping, _ bool) { h.mapped(pid) }
func (hearing) Forked(int, int)                          {}
func (hearing) Replaced(int)                             {}
func (hearing) Ended(int)                                {}
func (hearing) Drain()                                   {}

// With All, processes that do not use CUDA are none of the tracer's business.
func TestAllLeavesOthersAlone(t *testing.T) {
	mapped := make(chan int, 1000)
	openTrace(t, Options{All: true, Follow: true, Stacks: hearing{mapped: func(pid int) {
		select {
		case mapped <- pid:
		default:
		}
	}}})
	p := start(t, testcuda.Workload, testcuda.Options{})
	eventually(t, "word of a CUDA process", func() bool {
		select {
		case pid := <-mapped:
			return pid == p.PID()
		default:
			return false
		}
	})
	for range 20 {
		if err := exec.Command("true").Run(); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(100 * time.Millisecond) // what would be heard has been
	for len(mapped) > 0 {
		if pid := <-mapped; pid != p.PID() {
			t.Errorf("heard of process %d (%s), which does not use CUDA", pid, proc.Comm(pid))
		}
	}
}
