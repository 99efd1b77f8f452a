package unwind

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"
)

const (
	layers      = 12
	layerRounds = 50
	// deepest is UW_MODULES of bpf/unwind_python.h.
	deepest = 32
)

// A layerRun is what testdata/layers.py did, with the modules of each call.
type layerRun struct {
	*capture
	pid   int
	truth [][]uint64
}

// runLayers runs modules of a class. With learn it waits after the first call until the kernel
// side reads modules.
func runLayers(t *testing.T, c *capture, python, class string, learn bool) *layerRun {
	t.Helper()
	t.Setenv("PYTHONDONTWRITEBYTECODE", "1")
	library := buildLibrary(t)
	path := filepath.Join(t.TempDir(), "told.json")
	p := startTarget(t, python, "testdata/layers.py", class, strconv.Itoa(layers), strconv.Itoa(layerRounds), path)
	c.trace(p.pid)
	c.attach(library, symbol, 1)
	p.ask("first")
	for deadline := time.Now().Add(5 * time.Minute); learn && c.u.moduleCall(t, p.pid) == 0; {
		if time.Now().After(deadline) {
			t.Fatal("the function that calls modules was not found")
		}
		time.Sleep(time.Millisecond)
	}
	p.ask("run")
	r := &layerRun{capture: c, pid: p.pid}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &r.truth); err != nil {
		t.Fatal(err)
	}
	c.detach(uint64(len(r.truth)))
	return r
}

// moduleCall returns the code object that the kernel side takes for a call of a module.
func (u *Unwinder) moduleCall(t testing.TB, pid int) uint64 {
	t.Helper()
	var p knownProcess
	if err := u.known.kernel.Lookup(uint32(pid), &p); err != nil {
		t.Fatal(err)
	}
	return p.ModuleCall
}

// check compares the modules of each call with the truth, but the first: the function that
// calls modules is found by it. It returns how many different stacks there are at least.
func (r *layerRun) check(t *testing.T) (stacks int) {
	t.Helper()
	wrong, seen := 0, map[string]bool{}
	for i, e := range r.events[1:] {
		want := r.truth[i+1]
		want = want[:min(len(want), deepest)]
		got := r.stacks[e.stack]
		if !slices.Equal(got.Modules, want) || got.Err != nil {
			if wrong++; wrong < 5 {
				t.Errorf("call %d is in the modules %x, want %x; %v", i+1, got.Modules, want, got.Err)
			}
		}
		seen[fmt.Sprint(want)] = true
	}
	if wrong > 0 {
		t.Errorf("%d of %d calls have other modules", wrong, len(r.truth)-1)
	}
	return len(seen)
}

// most returns how many stacks there may be where n are told apart: the interpreter changes
// its code until it is fast.
func most(n int) int { return 3 * n }

// One line of code has a stack for each module that runs it, and its calls are never those of
// another module, whether the memo answers and is believed, or is compared with an unwind.
func TestModulesOfCalls(t *testing.T) {
	pythons := pythonsToCompare(t)
	for _, opts := range truthWays() {
		opts.Modules = true
		t.Run(fmt.Sprintf("verify %d", opts.VerifyStacks), func(t *testing.T) {
			c := newCapture(t, opts)
			for _, python := range pythons {
				for _, class := range []string{"Module", "Before"} {
					t.Run(python.name+"/"+class, func(t *testing.T) {
						c.begin(t)
						before := c.stats()
						r := runLayers(t, c, python.path, class, true)
						want := r.check(t)
						if got := len(c.counts) - 1; got > most(want) || want != 2*3*layers+2 {
							t.Errorf("%d stacks in %d different modules", got, want)
						}
						s := c.stats()
						if hits, n := s.MemoHits-before.MemoHits, uint64(len(r.truth)); hits < n*9/10 {
							t.Errorf("%d of %d calls from the memo", hits, n)
						}
						if s.Mismatched != before.Mismatched {
							t.Errorf("%d answers of the memo contradict an unwind", s.Mismatched-before.Mismatched)
						}
					})
				}
			}
		})
	}
}

// Without the option the stacks have no modules, and so they have none where each call of a
// module keeps it in a new cell.
func TestCallsWithoutModules(t *testing.T) {
	const places = 3 + 1 + 1 + 1 // of layers, of what is nested, of the end and the first call
	for _, python := range pythonsToCompare(t) {
		for class, opts := range map[string]Options{"Module": {}, "Closure": {Modules: true}} {
			t.Run(python.name+"/"+class, func(t *testing.T) {
				c := newCapture(t, opts)
				r := runLayers(t, c, python.path, class, false)
				if len(c.counts) > most(places) {
					t.Errorf("%d stacks at %d places", len(c.counts), places)
				}
				for _, s := range c.stacks {
					if len(s.Modules) > 0 {
						t.Errorf("a stack has the modules %x", s.Modules)
					}
				}
				if opts.Modules && pythonMinor(t, python.path) > 10 && c.u.moduleCall(t, r.pid) != 0 {
					t.Error("the kernel side reads cells")
				}
			})
		}
	}
}

// BenchmarkModules reports what the kernel spends on an event in three modules of twelve layers,
// with the words of the modules and without.
func BenchmarkModules(b *testing.B) {
	for _, python := range installedPythons() {
		minor := pythonMinor(b, python)
		if minor < 11 || python == systemPython {
			continue
		}
		for _, modules := range []bool{false, true} {
			b.Run(fmt.Sprintf("python_3.%d_modules_%t", minor, modules), func(b *testing.B) {
				library := buildLibrary(b)
				p := startTarget(b, python, "testdata/layers.py", "Module", strconv.Itoa(layers), "300", filepath.Join(b.TempDir(), "told.json"))
				c := newCapture(b, Options{Modules: modules}, p.pid)
				c.attach(library, symbol, 1)
				p.ask("first")
				var n uint64
				fmt.Sscan(p.ask("run")[len("done"):], &n)
				c.detach(n)
				b.ReportMetric(c.cost(), "kernel-ns/event")
				b.ReportMetric(float64(len(c.counts)), "stacks")
			})
		}
	}
}
