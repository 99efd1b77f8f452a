package unwind

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

func TestUnknownPython(t *testing.T) {
	for path, want := range map[string]bool{
		"/usr/bin/python3.15": true, "/usr/lib/libpython3.15.so.1.0": true, "/usr/lib/libpython3.15.so": true,
		"/opt/python3.15 (deleted)": true, "/usr/bin/python2.7": true, "/usr/bin/python3.5m": true,
		"/usr/bin/python3.14t": true, "/usr/lib/libpython3.13t.so.1.0": true, "/python3.999": true,
		"/usr/bin/python3.14": false, "/usr/bin/python3.6m": false, "/usr/lib/libpython3.13.so.1.0": false,
		"/usr/lib/libpython3.7dm.so.1.0": false, "/usr/lib/libpython3.so": false, "/usr/bin/python3": false,
		"/usr/lib/python3.15/lib-dynload/_ctypes.so": false, "/usr/bin/python3.15-config": false, "/usr/bin/ipython3.15": false,
	} {
		if got := unknownPython(proc.Mapping{Path: path}); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
}

// A process whose Python is not known is counted, once.
func TestUnknownPythonIsCounted(t *testing.T) {
	c := newCapture(t, Options{})
	for i, name := range []string{"python3.14", "python3.15"} {
		p := startTarget(t, buildProgram(t, "gcc", name, "-O2", "testdata/calls.c"), "3")
		for range 2 {
			c.trace(p.pid)
		}
		want := uint64(i)
		counters := c.u.loss()
		at := slices.IndexFunc(counters, func(l loss.Counter) bool { return l.Name == "pythons_unknown" })
		if at < 0 || counters[at].Value != want {
			t.Fatalf("%s: %+v; want %d pythons_unknown", name, counters, want)
		}
		versions := slices.Sorted(maps.Keys(codeLayouts))
		known := fmt.Sprintf("3.%d to 3.%d", versions[0]&0xff, versions[len(versions)-1]&0xff)
		if !strings.Contains(counters[at].Help, known) {
			t.Errorf("the help is %q; known are %s", counters[at].Help, known)
		}
	}
}
