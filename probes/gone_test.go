package probes

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
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
