package unwind

import (
	"os/exec"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
)

// Frames without frame pointers, on the main thread and on another, for either
// way to attach.
func TestNative(t *testing.T) {
	prog := buildCalls(t)
	for _, attach := range []ebpf.AttachType{ebpf.AttachNone, ebpf.AttachTraceUprobeMulti} {
		t.Run(attach.String(), func(t *testing.T) {
			p := startTarget(t, prog, "10")
			c := newCapture(t, Options{Attach: attach}, p.pid)
			c.attach(buildLibrary(t), symbol, 1)
			p.run()
			c.detach(11)
			if s := c.stats(); s.Incomplete != 0 || s.MemoHits != 9 {
				t.Error("want 9 memo hits and no incomplete stack")
			}
			recursion := slices.Repeat([]string{"recurse"}, 31)
			c.want(10, append(append([]string{"leaf"}, recursion...), "middle", "main", "...", "_start"))
			c.want(1, append(append([]string{"leaf"}, recursion...), "middle", "thread", "..."))
		})
	}
}

// TestPython wants the function, file and line of each Python frame in every
// CPython that is installed, and frames down to the program's first.
func TestPython(t *testing.T) {
	pythons := installedPythons()
	if len(pythons) == 0 {
		skip(t, "no CPython")
	}
	library := buildLibrary(t)
	c := newCapture(t, Options{})
	for _, python := range pythons {
		t.Run(python, func(t *testing.T) {
			c.begin(t)
			p := startTarget(t, python, "testdata/calls.py", "10")
			c.trace(p.pid)
			c.attach(library, symbol, 1)
			p.run()
			c.detach(11)
			c.wantPython(10, []string{
				"leaf calls.py:13", "Model.forward calls.py:18", "Model.__call__ calls.py:21",
				"via_native calls.py:26", "recurse calls.py:32", "recurse calls.py:31",
				"recurse calls.py:31", "recurse calls.py:31", "recurse calls.py:31",
				"recurse calls.py:31", "generate calls.py:36", "main calls.py:45", "<module> calls.py:53",
			})
			c.wantPython(1, []string{
				"leaf calls.py:13", "Model.forward calls.py:18", "Model.__call__ calls.py:21",
				"via_native calls.py:26", "recurse calls.py:32", "recurse calls.py:31",
				"recurse calls.py:31", "main.<locals>.<lambda> calls.py:46", "Thread.run threading.py",
				"Thread._bootstrap_inner threading.py", "Thread._bootstrap threading.py",
			})
			if pythonMinor(t, python) <= 10 {
				return // a stack ends with the outermost Python frame
			}
			if python == systemPython {
				c.want(10, []string{"...", "<module> calls.py:53", "...", "_start"})
				return
			}
			c.want(10, []string{"...", "<module> calls.py:53", "...", "Py_BytesMain", "...", "_start"})
			c.want(1, []string{"...", "pythread_wrapper", "..."})
		})
	}
}

// A pending uretprobe of an outer frame puts a trampoline in place of that
// frame's return address. The stack is the same, hit or unwound.
func TestHiddenReturnAddresses(t *testing.T) {
	prog := buildCalls(t)
	p := startTarget(t, prog, "10")
	c := newCapture(t, Options{}, p.pid)
	const around = 2
	c.attach(prog, "leaf", around)
	c.attach(prog, "middle", around)
	c.attach(buildLibrary(t), symbol, 1)
	p.run()
	c.detach(11)
	if s := c.stats(); s.Incomplete != 0 || s.MemoHits != 9 {
		t.Error("want 9 memo hits and no incomplete stack")
	}
	recursion := slices.Repeat([]string{"recurse"}, 31)
	c.want(10, append(append([]string{"leaf"}, recursion...), "middle", "main", "...", "_start"))
	c.want(1, append(append([]string{"leaf"}, recursion...), "middle", "thread", "..."))
}

// Code of other compilers, and frames that are not calls.
func TestCallers(t *testing.T) {
	optimized := []string{"-O3", "-fomit-frame-pointer"}
	library := buildLibrary(t)
	c := newCapture(t, Options{})
	for _, tt := range []struct {
		name  string
		build func(t *testing.T) string
		calls uint64
		want  [][]string
	}{
		{"C++ exceptions", func(t *testing.T) string {
			return buildProgram(t, "g++", "exceptions", append(optimized, "testdata/exceptions.cc")...)
		}, 20, [][]string{
			{"_ZN6BufferD1Ev", "_ZL6throwsm", "_ZL7catchesm", "main", "...", "_start"},
			{"_ZL7catchesm", "main", "...", "_start"},
		}},
		{"signal", func(t *testing.T) string {
			return buildProgram(t, "gcc", "signal", append(optimized, "testdata/signal.c")...)
		}, 10, [][]string{
			{"handler", "...", "interrupted", "main", "...", "_start"},
		}},
		{"stripped", func(t *testing.T) string {
			return buildProgram(t, "gcc", "stripped", append(optimized, "-s", "testdata/signal.c")...)
		}, 10, [][]string{{"...", "__libc_start_main", "..."}}},
		{"clang", func(t *testing.T) string {
			return buildProgram(t, "clang-19", "clanged", append(optimized, "testdata/signal.c")...)
		}, 10, [][]string{{"...", "interrupted", "main", "...", "_start"}}},
		{"cgo", func(t *testing.T) string {
			return buildGo(t)
		}, 10, [][]string{{"...", "runtime.asmcgocall.abi0", "runtime.cgocall", "...", "main.allocate", "main.main", "runtime.main", "runtime.goexit.abi0"}}},
		{"Rust", func(t *testing.T) string {
			if _, err := exec.LookPath("rustc"); err != nil {
				skip(t, "no rustc")
			}
			buildLibrary(t)
			return build(t, "rustc", "rustcaller", "-O", "testdata/caller.rs", "-L"+workDir(t), "-lalloc",
				"-Clink-args=-Wl,-rpath,$ORIGIN")
		}, 10, [][]string{{"rust_allocate", "...", "main", "...", "_start"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c.begin(t)
			p := startTarget(t, tt.build(t))
			c.trace(p.pid)
			c.attach(library, symbol, 1)
			p.run()
			c.detach(tt.calls)
			for _, frames := range tt.want {
				c.want(10, frames)
			}
		})
	}
}
