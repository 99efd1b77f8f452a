package probes

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

// torchSymbols have a test of their own: a C++ library of PyTorch's, not CUDA's.
var torchSymbols = []string{
	"_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE",
	"_ZN3c1027reportOutOfMemoryToProfilerElllNS_6DeviceE",
	"_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE",
	"_ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE",
	"_ZN3c1027reportMemoryUsageToProfilerEPvlNS_6DeviceE",
	"_ZN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocator19beginAllocateToPoolEaSt4pairIyyESt8functionIFbP11CUstream_stEE",
	"_ZN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocator17endAllocateToPoolEaSt4pairIyyE",
}

// A torchProgram is a program with a libc10 of its own: its functions, and calls of
// them.
func torchProgram(t *testing.T, declare, call string) (path string) {
	t.Helper()
	testcuda.Get(t) // gcc
	dir := t.TempDir()
	const device = "#include <cstdint>\n#include <cstdio>\nnamespace c10 { struct Device { int8_t type, index; }; }\n"
	write(t, filepath.Join(dir, "c10.cc"), device+"namespace c10 { "+declare+` { asm volatile(""); } }`)
	write(t, filepath.Join(dir, "main.cc"), device+"namespace c10 { "+declare+`; }
		int main() { puts("ready"); fflush(stdout); getchar(); `+call+" }")
	for _, args := range [][]string{
		{"-shared", "-fPIC", "-O1", "-o", filepath.Join(dir, "libc10.so"), filepath.Join(dir, "c10.cc")},
		{"-O1", "-o", filepath.Join(dir, "main"), filepath.Join(dir, "main.cc"), "-L" + dir, "-lc10", "-Wl,-rpath," + dir},
	} {
		if out, err := exec.Command("g++", args...).CombinedOutput(); err != nil {
			t.Fatalf("g++: %v\n%s", err, out)
		}
	}
	return filepath.Join(dir, "main")
}

// traceTorch runs a torchProgram and returns what was traced of it, but for its exit.
func traceTorch(t *testing.T, opts Options, declare, call string) []event.Event {
	t.Helper()
	tr, end := heldTorch(t, opts, declare, call)
	end()
	return slices.DeleteFunc(tr.drain(), func(e event.Event) bool { return e.Op == event.OpExit })
}

// heldTorch traces a torchProgram that has not called anything: end lets it, and waits
// until it has ended.
func heldTorch(t *testing.T, opts Options, declare, call string) (tr *trace, end func()) {
	t.Helper()
	return heldProgram(t, opts, exec.Command(torchProgram(t, declare, call)))
}

// heldProgram does so for a program that says "ready", and goes on at the end of its input.
func heldProgram(t *testing.T, opts Options, cmd *exec.Cmd) (tr *trace, end func()) {
	t.Helper()
	stdin, _ := cmd.StdinPipe()
	stdout, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if _, err := stdout.Read(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	tr = openTrace(t, opts)
	tr.target(cmd.Process.Pid)
	return tr, func() { stdin.Close(); cmd.Wait() }
}

// Every version's function is found in a library called libc10.so, and its
// device is read as two bytes.
func TestTorchOutOfMemory(t *testing.T) {
	for i, total := range []string{"unsigned long", "long"} {
		got := traceTorch(t, Options{}, "void reportOutOfMemoryToProfiler(int64_t, "+total+", "+total+", Device)",
			"c10::reportOutOfMemoryToProfiler(1000, 20, 300, {1, 3}); c10::reportOutOfMemoryToProfiler(1001, 21, 301, {0, -1});")
		if len(got) != 2 {
			t.Fatalf("%s: %d events, want 2", total, len(got))
		}
		for j, e := range got {
			device := int32(3)
			if j == 1 {
				device = event.NoDevice
			}
			n := uint64(j)
			if apiName(e.API) != torchSymbols[i] || e.Op != event.OpOutOfMemory || e.Result != event.Success ||
				e.Size != 1000+n || e.Handle != 20+n || e.Part != 300+n || e.Device != device || e.Stack == 0 {
				t.Errorf("%s: event %d: %+v", total, j, e)
			}
		}
	}
}

// What a caching allocator hands out and takes back is told at the entry of each
// version's function, on CUDA's devices alone, with a stack where it is handed out.
func TestTensors(t *testing.T) {
	for i, totals := range []string{"unsigned long, unsigned long, ", "long, long, ", ""} {
		have := func(allocated, reserved string) string {
			if totals == "" {
				return ""
			}
			return allocated + ", " + reserved + ", "
		}
		declare := "void reportMemoryUsageToProfiler(void *, int64_t, " + totals + "Device)"
		call := "c10::reportMemoryUsageToProfiler((void *)0x7000, 512, " + have("1512", "4096") + "{1, 3});" +
			"c10::reportMemoryUsageToProfiler((void *)0x8000, 64, " + have("64", "64") + "{0, -1});" + // on the host
			"c10::reportMemoryUsageToProfiler((void *)0x7000, -512, " + have("1000", "4096") + "{1, 3});"
		got := traceTorch(t, Options{Tensors: true}, declare, call)
		if len(got) != 2 {
			t.Fatalf("%q: %d events, want 2: %+v", totals, len(got), got)
		}
		for j, e := range got {
			want := event.Event{Op: event.OpTensorAlloc, Kind: event.KindTensor, Addr: 0x7000, Size: 512, Handle: 1512, Part: 4096, Device: 3}
			if j == 1 {
				want.Op, want.Kind, want.Handle = event.OpTensorFree, event.KindNone, 1000
			}
			if totals == "" {
				want.Handle, want.Part = event.NoTotal, event.NoTotal
			}
			if apiName(e.API) != torchSymbols[2+i] || (e.Stack != 0) != (j == 0) {
				t.Errorf("%q: event %d is %s with stack %d", totals, j, apiName(e.API), e.Stack)
			}
			want.API, want.Time, want.Proc, want.TID, want.Stack, want.Tenant = e.API, e.Time, e.Proc, e.TID, e.Stack, e.Tenant
			if e != want {
				t.Errorf("%q: event %d: %+v, want %+v", totals, j, e, want)
			}
		}
		if got := traceTorch(t, Options{}, declare, call); len(got) != 0 {
			t.Errorf("%q: %d events although nobody asked for tensors", totals, len(got))
		}
	}
}

// A PyTorch whose function has another signature is told of, once, and nothing is read
// into it.
func TestUnknownTensors(t *testing.T) {
	tr, end := heldTorch(t, Options{Tensors: true}, "void reportMemoryUsageToProfiler(void *, int64_t, double, Device)",
		"c10::reportMemoryUsageToProfiler((void *)0x7000, 512, 1.0, {1, 3});")
	eventually(t, "a warning", func() bool { return len(tr.warnings) > 0 })
	if text := <-tr.warnings; !strings.Contains(text, "what its segments hold is not seen") {
		t.Errorf("warned of: %s", text)
	}
	end()
	for _, e := range tr.drain() {
		if e.Op.Tensor() {
			t.Errorf("an event: %+v", e)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
