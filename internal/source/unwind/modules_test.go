package unwind

import (
	"fmt"
	"path/filepath"
	"testing"
)

// The code of modules that are run and freed comes to lie at one address, and so does
// all that it points to. Each has a stack of its own, with its own name or none.
func TestModulesOneAfterTheOther(t *testing.T) {
	const modules = 1000
	library := buildLibrary(t)
	c := newCapture(t, Options{})
	for _, python := range installedPythons() {
		t.Run(python, func(t *testing.T) {
			c.begin(t)
			p := startTarget(t, python, "testdata/modules.py", fmt.Sprint(modules))
			c.trace(p.pid)
			c.attach(library, symbol, 1)
			p.run()
			c.detach(modules)
			stacks := make(map[uint64]bool)
			named, wrong := 0, 0
			for i, e := range c.events {
				stacks[e.stack] = true
				for _, f := range c.stacks[e.stack].Frames {
					if f.Kind != Python {
						continue
					}
					if f.Function != "" {
						named++
						if name := filepath.Base(f.File); name != fmt.Sprintf("module_%05d.py", i) {
							if wrong++; wrong == 1 {
								t.Errorf("module %d is called %s", i, name)
							}
						}
					}
					break
				}
			}
			t.Logf("%d stacks of %d modules, %d named, %d of them wrong", len(stacks), modules, named, wrong)
			if len(stacks) != modules {
				t.Errorf("%d stacks, want %d", len(stacks), modules)
			}
		})
	}
}
