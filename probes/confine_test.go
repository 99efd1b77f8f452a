package probes

import (
	"path/filepath"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

// Without following, no probe is in any process but the target: not in one that
// maps the same library, nor in one that comes to load the system's. The
// target's own is probed before it loads it.
func TestConfined(t *testing.T) {
	if !pidFilterWorks() {
		t.Skip("this kernel does not confine probes to a process")
	}
	kit := testcuda.Get(t)
	t.Setenv("LD_LIBRARY_PATH", kit.Dir) // the system's libraries
	for _, program := range []testcuda.Program{testcuda.Workload, testcuda.WorkloadLate} {
		t.Run(string(program), func(t *testing.T) {
			p := start(t, program, testcuda.Options{})
			run(t, p, "echo up")
			tr := openTrace(t, Options{Ahead: true})
			if n := tr.Prepared(); n != 0 {
				t.Errorf("prepared %d libraries", n)
			}
			tr.target(p.PID())
			probed := map[string]bool{}
			for key, f := range tr.libs.table {
				if f.attachment == nil {
					continue
				}
				probed[filepath.Base(f.library.Path)] = true
				if key.pid != p.PID() {
					t.Errorf("%s is probed for process %d", f.library.Path, key.pid)
				}
			}
			if !probed["libcuda.so.1"] {
				t.Errorf("probed: %v", probed)
			}
			if program == testcuda.WorkloadLate {
				run(t, p, "dlopen", "init")
			}
			run(t, p, "cuMemAlloc_v2")
			if n := len(tr.drain()); n == 0 {
				t.Error("no event")
			}
		})
	}
}
