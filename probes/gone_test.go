package probes

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// memoryAt opens a process's memory, and returns the address of the probe on a function of a
// library that it maps.
func memoryAt(t *testing.T, pid int, symbol string) (*os.File, int64) {
	t.Helper()
	memory, err := os.OpenFile(filepath.Join("/proc", strconv.Itoa(pid), "mem"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { memory.Close() })
	mapped, err := mappedLibraries(pid, []Level{Driver})
	if err != nil || len(mapped) != 1 {
		t.Fatalf("%d libraries: %v", len(mapped), err)
	}
	m := mapped[0]
	s, err := openLibrary(t, m.Path).sites(lasting)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range s.points {
		if Entries[p.entry].Symbol == symbol && p.at >= m.Offset && p.at-m.Offset < m.End-m.Start {
			return memory, int64(m.Start + p.at - m.Offset)
		}
	}
	t.Fatalf("no place of %s", symbol)
	return nil, 0
}

func poke(t *testing.T, memory *os.File, at int64, code []byte) (was []byte) {
	t.Helper()
	was = make([]byte, len(code))
	if _, err := memory.ReadAt(was, at); err != nil {
		t.Fatal(err)
	}
	if _, err := memory.WriteAt(code, at); err != nil {
		t.Fatal(err)
	}
	return was
}

// A debugger's breakpoint from before the trace hides the probe: when the debugger removes it, the
// probe is gone. This is counted once, while the trace runs or when it ends, and said.
func TestProbeIsGone(t *testing.T) {
	for name, look := range map[string]func(*trace){
		"while it runs": func(tr *trace) { eventually(t, "a look", func() bool { return tr.counter("probes_gone") != 0 }) },
		"at the end": func(tr *trace) {
			if err := tr.Stop(); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := odd(t)
			memory, at := memoryAt(t, p.pid(), "cuMemAlloc_v2")
			was := poke(t, memory, at, breakpoint)
			tr := openTrace(t, Options{})
			tr.target(p.pid())
			tr.finder.lookAtAll()
			if n := tr.counter("probes_gone"); n != 0 {
				t.Errorf("%d probes are gone before one is", n)
			}
			poke(t, memory, at, was)
			look(tr)
			tr.finder.lookAtAll()
			if n := tr.counter("probes_gone"); n != 1 {
				t.Errorf("%d probes are gone, want 1", n)
			}
			eventually(t, "a warning", func() bool { return len(tr.warnings) > 0 })
			if text := <-tr.warnings; !strings.Contains(text, "later calls of cuMemAlloc_v2 are not counted") {
				t.Errorf("warning %q", text)
			}
		})
	}
}

// A breakpoint in a process that has a debugger is the debugger's. It is told apart, and stays when
// those that a tracer left behind are removed.
func TestDebuggersBreakpoint(t *testing.T) {
	runtime.LockOSThread() // the thread that debugs; its end detaches it
	debugged, other := odd(t), odd(t)
	if err := unix.PtraceSeize(debugged.pid()); err != nil {
		t.Skip(err)
	}
	memory, at := memoryAt(t, debugged.pid(), "cuMemAlloc_v2")
	poke(t, memory, at, breakpoint)
	left, place := memoryAt(t, other.pid(), "cuMemFree_v2")
	was := poke(t, left, place, breakpoint)

	found, _ := Leftovers([]int{debugged.pid(), other.pid()})
	if len(found) != 2 || !found[0].Debugged || found[1].Debugged {
		t.Fatalf("found %+v, want the debugger's and another one", found)
	}
	found = LeftBehind(found)
	if len(found) != 1 || found[0].PID != other.pid() {
		t.Fatalf("left behind %+v, want that of process %d", found, other.pid())
	}
	if found = LeftBehind([]Leftover{{offset: 7, Debugged: true}, {offset: 7}}); len(found) != 0 {
		t.Errorf("left behind %+v, although a debugger has a breakpoint at that place", found)
	}
	poke(t, left, place, was)
}
