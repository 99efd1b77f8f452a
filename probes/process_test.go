package probes

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

// The steps of a process's life come in order, with its calls between them.
func TestLife(t *testing.T) {
	kit := testcuda.Get(t)
	p := start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "row cuMemAlloc_v2 1")
	tr := traced(t, p, Options{})
	lines := run(t, p, fmt.Sprintf("fork { init; cuMemAlloc_v2 100; exec %s cuMemAlloc_v2;exit }", kit.Path(testcuda.WorkloadLate)), "cuMemAlloc_v2 300")
	var child uint32
	if _, err := fmt.Sscanf(lines[len(lines)-1], "child %d status 0", &child); err != nil {
		t.Fatalf("%q: %v", lines, err)
	}
	if _, code, err := p.Wait(); err != nil || code != 0 {
		t.Fatalf("exit %d, %v", code, err)
	}
	events := tr.drain()
	parent := uint32(p.PID())
	var got []string
	var starts [2]uint64
	for _, e := range events {
		who := "parent"
		if e.Proc.PID == child {
			who = "child"
		} else if e.Proc.PID != parent {
			t.Errorf("an event of process %d", e.Proc.PID)
		}
		if e.Op == event.OpContextSeen {
			continue
		}
		got = append(got, fmt.Sprintf("%s %d %d", who, e.Op, e.Size))
		i := 0
		if who == "child" {
			i = 1
		}
		if starts[i] == 0 {
			starts[i] = e.Proc.Start
		}
		if e.Proc.Start != starts[i] || e.Proc.Start == 0 {
			t.Errorf("%s began at %d, before at %d", who, e.Proc.Start, starts[i])
		}
		if e.Op == event.OpFork && (e.Child.PID != child || e.Child.Start == 0) {
			t.Errorf("fork of %+v, want pid %d", e.Child, child)
		}
		if e.Op == event.OpFork {
			starts[1] = e.Child.Start
		}
	}
	want := []string{
		fmt.Sprintf("parent %d 0", event.OpFork),
		fmt.Sprintf("child %d 100", event.OpAlloc),
		fmt.Sprintf("child %d 0", event.OpExec),
		fmt.Sprintf("child %d 4096", event.OpAlloc),
		fmt.Sprintf("child %d 0", event.OpExit),
		fmt.Sprintf("parent %d 300", event.OpAlloc),
		fmt.Sprintf("parent %d 0", event.OpExit),
	}
	// The new image loads libcuda by dlopen: this very file has its probes.
	if !slices.Equal(got, want) {
		t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
	if starts[0] == starts[1] {
		t.Error("parent and child began at the same time")
	}
	if tr.targets.has(p.PID()) || tr.targets.has(int(child)) {
		t.Error("an ended process is still a target")
	}
	tr.wantLoss(nil)
}

// The end of a thread is no end of its process, an exec by a thread keeps the
// process's identity, and a signal's end is an end.
func TestThreadsAndTheirProcess(t *testing.T) {
	kit := testcuda.Get(t)
	p := start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "init")
	tr := traced(t, p, Options{})
	run(t, p, "threads 5 cuMemAlloc_v2")
	if n := tally(tr.drain()); n[call{"cuMemAlloc_v2", 0}] != 5 || n[call{"cuDevicePrimaryCtxRetain", 0}] != 5 || len(tr.events) != 10 {
		t.Errorf("five threads:%s", format(tr.events))
	}
	if err := p.Send("threads 2 exec " + kit.Path(testcuda.Workload)); err != nil {
		t.Fatal(err)
	}
	run(t, p, "cuMemAlloc_v2", "threads 3 cuMemAlloc_v2")
	if err := p.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.Wait()
	events := slices.DeleteFunc(tr.drain(), func(e event.Event) bool { return e.Op == event.OpContextSeen })
	want := []event.Op{event.OpExec, event.OpAlloc, event.OpAlloc, event.OpAlloc, event.OpAlloc, event.OpExit}
	if !slices.Equal(ops(events), want) {
		t.Errorf("an exec by a thread, then SIGKILL:%s", format(events))
	}
	for _, e := range events {
		if e.Proc != events[0].Proc || e.Proc.PID != uint32(p.PID()) {
			t.Errorf("process %+v, want one and the same", e.Proc)
		}
	}
	tr.wantLoss(nil)
}

// A thread that replaces the image takes the leader's number, and its events say so.
func TestExecByThread(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "init")
	tr := traced(t, p, Options{})
	if err := p.Send(fmt.Sprintf("threads 1 { cuMemAlloc_v2; exec %s }", testcuda.Get(t).Path(testcuda.Workload))); err != nil {
		t.Fatal(err)
	}
	run(t, p, "cuMemAlloc_v2")
	events := slices.DeleteFunc(tr.drain(), func(e event.Event) bool { return e.Op == event.OpContextSeen })
	if want := []event.Op{event.OpAlloc, event.OpExec, event.OpAlloc}; !slices.Equal(ops(events), want) {
		t.Fatalf("events:%s", format(events))
	}
	pid := uint32(p.PID())
	for i, of := range []bool{false, true, true} {
		if e := events[i]; e.Proc != events[0].Proc || e.Proc.PID != pid || (e.TID == pid) != of {
			t.Errorf("event %d: process %+v, thread %d; of the leader %t", i, e.Proc, e.TID, of)
		}
	}
}

func TestNoFollow(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "init")
	tr := openTrace(t, Options{})
	tr.target(p.PID())
	run(t, p, "fork { init; row cuMemAlloc_v2 }", "cuMemAlloc_v2")
	if events := tr.drain(); len(events) != 1 || events[0].Proc.PID != uint32(p.PID()) {
		t.Errorf("events:%s", format(events))
	}
}

// Another process that uses the same library is not traced, until it is.
func TestOtherProcesses(t *testing.T) {
	p, other := start(t, testcuda.Workload, testcuda.Options{}), start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "init")
	run(t, other, "init")
	tr := traced(t, p, Options{})
	run(t, other, "row cuMemAlloc_v2")
	run(t, p, "row cuMemAlloc_v2")
	for _, e := range tr.drain() {
		if e.Proc.PID != uint32(p.PID()) {
			t.Fatalf("an event of process %d", e.Proc.PID)
		}
	}
	tr.target(other.PID())
	run(t, other, "row cuMemAlloc_v2")
	if n := len(tr.drain()); n != 2*calls {
		t.Errorf("%d events of the second target, want %d", n, 2*calls)
	}
	tr.wantLoss(nil)
}

// With All, processes of now and of later are traced.
func TestAll(t *testing.T) {
	now := start(t, testcuda.Workload, testcuda.Options{})
	run(t, now, "init")
	tr := openTrace(t, Options{All: true, Follow: true})
	of, err := userOf(now.PID())
	if pids := ProcessesByUser(); err != nil || !slices.Contains(pids[of], now.PID()) || !UsesCUDA(now.PID()) {
		t.Fatalf("processes: %d, want %d among them, which uses CUDA", pids, now.PID())
	}
	tr.target(now.PID())
	later := start(t, testcuda.Workload, testcuda.Options{})
	run(t, later, "init", "row cuMemAlloc_v2", "fork { init; row cuMemAlloc_v2 }")
	run(t, now, "row cuMemAlloc_v2")
	if _, code, err := later.Wait(); err != nil || code != 0 {
		t.Fatalf("exit %d, %v", code, err)
	}
	per := map[uint32]int{}
	ended := false
	for _, e := range tr.drain() { // of other programs on this machine too
		if e.Op == event.OpAlloc {
			per[e.Proc.PID]++
		}
		ended = ended || e.Op == event.OpExit && e.Proc.PID == uint32(later.PID())
	}
	if per[uint32(now.PID())] != calls || per[uint32(later.PID())] != calls || len(per) < 3 || !ended {
		t.Errorf("allocations by process: %v, ended %v", per, ended)
	}
}

// A library that a target loads while it is traced is probed at once.
func TestLateLibrary(t *testing.T) {
	p := start(t, testcuda.WorkloadLate, testcuda.Options{})
	tr := openTrace(t, Options{})
	if libs := tr.target(p.PID()); len(libs) != 0 {
		t.Fatalf("maps %v before dlopen", libs)
	}
	run(t, p, "dlopen")
	eventually(t, "the library's probes", func() bool { return len(tr.probedLibraries()) == 1 })
	run(t, p, "init", "row cuMemAlloc_v2")
	if n := tally(tr.drain())[call{"cuMemAlloc_v2", 0}]; n != calls {
		t.Errorf("%d events, want %d", n, calls)
	}
	// It ran without probes for a moment, and that is told.
	eventually(t, "word of the gap", func() bool { return tr.counter("libraries_probed_late") > 0 })
	tr.wantLoss(map[string]uint64{"libraries_probed_late": 1})
	if gap := tr.longestGap(); gap <= 0 || gap > time.Second {
		t.Errorf("without probes for %v", gap)
	}
}

func (tr *trace) probedLibraries() (paths []string) {
	tr.libs.mu.Lock()
	defer tr.libs.mu.Unlock()
	for _, a := range tr.libs.attachments() {
		paths = append(paths, a.library.Path)
	}
	return paths
}

// A library whose file is gone, or lies where only its process can see it, is
// probed through the process.
func TestUnreachableLibraries(t *testing.T) {
	check := func(t *testing.T, p *program) {
		t.Helper()
		tr := openTrace(t, Options{Follow: true})
		if libs := tr.target(p.pid()); len(libs) != 1 {
			t.Fatalf("maps %v, want one library", libs)
		}
		p.do("init; row cuMemAlloc_v2; echo done", "done")
		if n := tally(tr.drain())[call{"cuMemAlloc_v2", 0}]; n != calls {
			t.Errorf("%d events, want %d", n, calls)
		}
		tr.wantLoss(nil)
	}
	t.Run("deleted", func(t *testing.T) {
		dir := t.TempDir()
		p := workload(t, nil, copyKit(t, dir), dir)
		if err := os.Remove(filepath.Join(dir, "libcuda.so.1")); err != nil {
			t.Fatal(err)
		}
		check(t, p)
	})
	t.Run("replaced", func(t *testing.T) {
		dir := t.TempDir()
		p := workload(t, nil, copyKit(t, dir), dir)
		lib := filepath.Join(dir, "libcuda.so.1")
		if err := os.Remove(lib); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(lib, []byte("an upgrade under way"), 0o644); err != nil {
			t.Fatal(err)
		}
		check(t, p)
	})
	t.Run("chroot", func(t *testing.T) {
		dir := t.TempDir()
		copyKit(t, dir)
		check(t, workload(t, &syscall.SysProcAttr{Chroot: dir}, "/workload", "/"))
	})
	t.Run("mount namespace", func(t *testing.T) {
		dir := t.TempDir()
		copyKit(t, dir)
		sh := exec.Command("unshare", "-m", "sh", "-c",
			`mkdir "$0.in" && mount -t tmpfs none "$0.in" && cp -r "$0/." "$0.in" && LD_LIBRARY_PATH="$0.in" exec "$0.in/workload"`, dir)
		p := spawn(t, sh, "")
		p.do("echo up", "up")
		if _, err := os.Stat(dir + ".in/workload"); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("the library is to be seen from outside: %v", err)
		}
		check(t, p)
		os.Remove(dir + ".in")
	})
	t.Run("PID namespace", func(t *testing.T) {
		kit := testcuda.Get(t)
		p := workload(t, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}, kit.Path(testcuda.Workload), kit.Dir)
		tr := openTrace(t, Options{Follow: true})
		tr.target(p.pid())
		p.do("init; row cuMemAlloc_v2; fork { init; row cuMemAlloc_v2 }; echo done", "done")
		per := map[uint32]int{}
		for _, e := range tr.drain() {
			if e.Op == event.OpAlloc {
				per[e.Proc.PID]++
			}
		}
		if per[uint32(p.pid())] != calls || len(per) != 2 || per[1] != 0 || per[2] != 0 {
			t.Errorf("allocations by process: %v, want %d in %d and in a child", per, calls, p.pid())
		}
	})
}

// The tracer's own PID namespace is the one whose PIDs it speaks of.
func TestInsidePIDNamespace(t *testing.T) {
	needTracing(t)
	testcuda.Get(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("unshare", "--pid", "--fork", "--mount-proc", self,
		"-test.v", "-test.run=^(TestFields|TestLife|TestThreadsAndTheirProcess|TestOtherProcesses|TestLateLibrary)$").CombinedOutput()
	if err != nil || strings.Count(string(out), "--- PASS") != 5 {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestNoSuchProcess(t *testing.T) {
	tr := openTrace(t, Options{})
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if _, err := tr.Target(cmd.Process.Pid); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Target of an ended process: %v, want os.ErrNotExist", err)
	}
	if tr.targets.has(cmd.Process.Pid) {
		t.Error("who has the PID of an ended process next would be traced")
	}
}

// A file that is only named like CUDA's library is refused, and does not keep
// a true one, or another process, from being traced.
func TestUselessLibrary(t *testing.T) {
	kit := testcuda.Get(t)
	dir := t.TempDir()
	useless := filepath.Join(dir, "libcuda.so.1")
	compile(t, useless, "../../internal/source/proc/testdata/small.c", "-DUSELESS", "-shared", "-fPIC")
	p := workload(t, nil, kit.Path(testcuda.WorkloadLate), kit.Dir)
	p.do("dlopen "+useless+"; echo mapped", "mapped")
	tr := openTrace(t, Options{})
	if _, err := tr.Target(p.pid()); !errors.Is(err, ErrNoSymbols) || !strings.Contains(err.Error(), useless) {
		t.Errorf("only a useless library: %v", err)
	}
	p.do("dlopen "+kit.LibCUDA+"; echo mapped", "mapped")
	tr = openTrace(t, Options{})
	if libs := tr.target(p.pid()); len(libs) != 2 {
		t.Errorf("maps %v, want two libraries", libs)
	}
	if len(tr.warnings) != 1 || !strings.Contains(<-tr.warnings, useless) {
		t.Error("no warning of the useless one")
	}
	all := openTrace(t, Options{All: true})
	all.target(p.pid())
	of, err := userOf(p.pid())
	if pids := ProcessesByUser(); err != nil || !slices.Contains(pids[of], p.pid()) || !UsesCUDA(p.pid()) {
		t.Errorf("all processes: %d", pids)
	}
}

// A laggard handles events more slowly than a hammer makes them.
type laggard struct {
	counter
	events int
}

func (l *laggard) Event(*event.Event) {
	if l.events++; l.events%64 == 0 {
		time.Sleep(time.Millisecond)
	}
}

// Whoever allocates without a pause does not keep what is done between batches
// from coming.
func TestIdleUnderLoad(t *testing.T) {
	p := start(t, testcuda.Hammer, testcuda.Options{Args: []string{"-threads", "1", "-seconds", "3", "-wait"}})
	if _, err := p.Expect("ready"); err != nil {
		t.Fatal(err)
	}
	tr := traced(t, p, Options{})
	busy := 0
	done := make(chan error, 1)
	go func() {
		done <- tr.Run(&laggard{}, func(until time.Duration) {
			if until == 0 {
				busy++
			}
		})
	}()
	if err := p.Send("go"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(tr.Stop(), <-done); err != nil {
		t.Fatal(err)
	}
	if busy == 0 {
		t.Error("never between batches while events waited")
	}
}

// Very many processes that map a library each at one moment all have probes: more
// than are looked at, and attached to, at one time.
func TestManyLibrariesAtOnce(t *testing.T) {
	const libraries = 5 * maxUnderWay
	tr := openTrace(t, Options{All: true, Follow: true})
	dir := t.TempDir()
	program := filepath.Join(dir, "mapall")
	compile(t, program, "mapall.c")
	paths := make([]string, libraries)
	for i := range paths {
		paths[i] = copyLibrary(t, filepath.Join(dir, strconv.Itoa(i)))
	}
	spawn(t, exec.Command(program, paths...), "")
	missing := paths
	eventually(t, "every library's probes", func() bool {
		probed := tr.probedLibraries()
		missing = slices.DeleteFunc(missing, func(path string) bool { return slices.Contains(probed, path) })
		return len(missing) == 0 || tr.counter("libraries_not_probed") > 0
	})
	if n := tr.counter("libraries_not_probed"); len(missing) > 0 || n > 0 {
		t.Errorf("%d libraries have no probes, %d are counted", len(missing), n)
	}
}
