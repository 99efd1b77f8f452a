package unwind

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// CPython puts a new code object where one lay that it freed, and all that the object
// points to as well. Each function has its own name and lines, whether its stack comes
// from the memo or not, and whether the code is gone when the stack is named or not.
func TestCodeAtReusedAddresses(t *testing.T) {
	const codes = 300
	library := buildLibrary(t)
	c := newCapture(t, Options{})
	for _, python := range pythonsToCompare(t) {
		for difference, want := range map[string]func(i, call int) string{
			"name": func(i, call int) string { return fmt.Sprintf("f%05d <string>:%d", i, 2+call) },
			"file": func(i, call int) string { return fmt.Sprintf("f %05d.py:%d", i, 2+call) },
			"line": func(i, call int) string { return fmt.Sprintf("f <string>:%d", 2+i+call) },
		} {
			for _, late := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/late %t", python.name, difference, late), func(t *testing.T) {
					c.begin(t)
					p := startTarget(t, python.path, "testdata/reused.py", difference, fmt.Sprint(codes))
					c.trace(p.pid)
					c.attach(library, symbol, 1)
					var addresses int
					run := func() { fmt.Sscan(strings.TrimPrefix(p.run(), "done"), &addresses) }
					if late {
						c.hold.Lock()
						run()
						c.hold.Unlock()
					} else {
						run()
					}
					c.detach(2 * codes)
					if addresses == 0 || addresses > codes/4 {
						t.Errorf("%d addresses of %d code objects: the test does not test", addresses, codes)
					}
					if len(c.counts) != 2*codes {
						t.Errorf("%d stacks, want %d", len(c.counts), 2*codes)
					}
					for i, e := range c.events {
						var got string
						stack := c.stacks[e.stack]
						for _, f := range stack.Frames {
							if f.Kind == Python {
								got = fmt.Sprintf("%s %s:%d", f.Function, filepath.Base(f.File), f.Line)
								break
							}
						}
						if want := want(i/2, i%2); got != want {
							t.Fatalf("call %d is of %q, want %q: %+v", i, got, want, stack)
						}
					}
				})
			}
		}
	}
}

// Modules that differ in their lines alone, and functions in them, have their own lines,
// although all of the code is gone before a stack is named.
func TestModulesAtReusedAddresses(t *testing.T) {
	const runs = 300
	library := buildLibrary(t)
	c := newCapture(t, Options{})
	for _, python := range pythonsToCompare(t) {
		t.Run(python.name, func(t *testing.T) {
			c.begin(t)
			p := startTarget(t, python.path, "testdata/alike.py", fmt.Sprint(runs))
			c.trace(p.pid)
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
