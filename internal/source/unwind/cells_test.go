package unwind

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf/link"

	"github.com/gpumemtrace/gpumemtrace/bpf"
)

// A freer is the function of an interpreter that frees code objects.
type freer struct {
	file   string
	offset uint64
}

// freerIn finds it in the interpreter's library, or else in its program.
func freerIn(t testing.TB, python string) (freer, bool) {
	t.Helper()
	libraries, _ := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(python)), "lib/libpython3.?*.so.1.0"))
	for _, path := range append(libraries, python) {
		if offset, err := freerOf(t, path); err == nil && offset != 0 {
			return freer{path, offset}, true
		}
	}
	return freer{}, false
}

// countFreed counts in the cells what code objects an interpreter frees.
func (c *capture) countFreed(f freer) {
	c.t.Helper()
	spec, err := bpf.LoadUnwind()
	if err != nil {
		c.t.Fatal(err)
	}
	program, err := c.u.kernel.load(spec, "gm_code_freed", nil, Options{Maps: c.base.Maps})
	if err != nil {
		c.t.Fatalf("%+v", err)
	}
	c.t.Cleanup(func() { program.Close() })
	ex, err := link.OpenExecutable(f.file)
	if err != nil {
		c.t.Fatal(err)
	}
	probe, err := ex.Uprobe("", program, &link.UprobeOptions{Address: f.offset})
	if err != nil {
		c.t.Fatal(err)
	}
	c.links = append(c.links, probe)
}

// freers are the interpreters to compare, each with its function.
func freers(t *testing.T) (pythons []cpython, of map[cpython]freer) {
	t.Helper()
	of = make(map[cpython]freer)
	for _, python := range pythonsToCompare(t) {
		if f, ok := freerIn(t, python.path); ok {
			pythons = append(pythons, python)
			of[python] = f
		} else {
			t.Errorf("%s: no function that frees code objects", python.name)
		}
	}
	return pythons, of
}

// Where cells tell code objects apart, a search of the memo reads none of them. The code
// of one module after the other, of one shape and at one address, has a stack of its own
// as long as those that are freed are counted, and only then.
func TestCellsTellCodeApart(t *testing.T) {
	const modules = 1000
	library := buildLibrary(t)
	pythons, of := freers(t)
	for _, counted := range []bool{true, false} {
		c := newCapture(t, Options{})
		for _, python := range pythons {
			t.Run(fmt.Sprintf("counted %t/%s", counted, python.name), func(t *testing.T) {
				c.begin(t)
				before := c.stats().MemoHits
				p := startTarget(t, python.path, "testdata/modules.py", fmt.Sprint(modules))
				c.trace(p.pid)
				c.byCells(p.pid, true)
				if counted {
					c.countFreed(of[python])
				}
				c.attach(library, symbol, 1)
				p.run()
				c.detach(modules)
				stacks, hits := len(c.counts), c.stats().MemoHits-before
				if counted && (stacks != modules || hits != 0) {
					t.Errorf("%d stacks of %d modules, %d of them from the memo", stacks, modules, hits)
				}
				if !counted && hits < modules/2 {
					t.Errorf("%d stacks from the memo: the search tells code objects apart by something else", hits)
				}
			})
		}
	}
}

// TestTruthByCells compares as TestTruth does.
func TestTruthByCells(t *testing.T) {
	pythons, of := freers(t)
	c := newCapture(t, Options{VerifyStacks: 1})
	c.traced = func(pid int) { c.byCells(pid, true) }
	for _, python := range pythons {
		t.Run(python.name, func(t *testing.T) {
			c.begin(t)
			c.countFreed(of[python])
			compareTruth(t, c, python.path, "testdata/truth.py", "3")
		})
	}
}

// Code that is alike but for its lines, and comes to lie where the one before lay, has its
// own names and lines, and each a stack of its own, although all of it has gone before a
// stack is named.
func TestCellsNameCode(t *testing.T) {
	const runs = 300
	library := buildLibrary(t)
	pythons, of := freers(t)
	c := newCapture(t, Options{})
	c.traced = func(pid int) { c.byCells(pid, true) }
	for _, python := range pythons {
		t.Run(python.name, func(t *testing.T) {
			c.begin(t)
			p := startTarget(t, python.path, "testdata/alike.py", fmt.Sprint(runs))
			c.trace(p.pid)
			c.countFreed(of[python])
			c.attach(library, symbol, 1)
			c.hold.Lock()
			p.run()
			c.hold.Unlock()
			c.detach(2 * runs)
			if len(c.counts) < runs {
				t.Errorf("%d stacks of %d codes", len(c.counts), runs)
			}
			for i, e := range c.events {
				got := pythonFrames(c.stacks[e.stack].Frames)
				line := i/2 + 1
				want := []string{fmt.Sprintf("<module>.<lambda> <string>:%d", line), fmt.Sprintf("<module> <string>:%d", line)}
				if len(got) < len(want) || strings.TrimPrefix(got[0], "<module>.") != strings.TrimPrefix(want[0], "<module>.") || got[1] != want[1] {
					t.Fatalf("call %d has the frames %v, want %v", i, got, want)
				}
			}
		})
	}
}
