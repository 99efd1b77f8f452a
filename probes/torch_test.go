package probes

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
	"github.com/gpumemtrace/gpumemtrace/internal/testcuda"
)

// torchSymbols have a test of their own: a C++ library of PyTorch's, not CUDA's.
var torchSymbols = []string{
	"_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE",
	"_ZN3c1027reportOutOfMemoryToProfilerElllNS_6DeviceE",
}

// Every version's function is found in a library called libc10.so, and its
// device is read as two bytes.
func TestTorchOutOfMemory(t *testing.T) {
	testcuda.Get(t) // gcc
	for i, types := range []string{"unsigned long", "long"} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "c10.cc"), `#include <cstdint>
			namespace c10 {
			struct Device { int8_t type, index; };
			void reportOutOfMemoryToProfiler(int64_t size, `+types+` allocated, `+types+` reserved, Device d) {
				asm volatile("" :: "r"(size), "r"(allocated), "r"(reserved), "r"(d.index));
			}
			}`)
		write(t, filepath.Join(dir, "main.cc"), `#include <cstdint>
			#include <cstdio>
			namespace c10 {
			struct Device { int8_t type, index; };
			void reportOutOfMemoryToProfiler(int64_t, `+types+`, `+types+`, Device);
			}
			int main() {
				puts("ready"); fflush(stdout); getchar();
				c10::reportOutOfMemoryToProfiler(1000, 20, 300, {1, 3});
				c10::reportOutOfMemoryToProfiler(1001, 21, 301, {0, -1});
			}`)
		for _, args := range [][]string{
			{"-shared", "-fPIC", "-O1", "-o", filepath.Join(dir, "libc10.so"), filepath.Join(dir, "c10.cc")},
			{"-O1", "-o", filepath.Join(dir, "main"), filepath.Join(dir, "main.cc"), "-L" + dir, "-lc10", "-Wl,-rpath," + dir},
		} {
			if out, err := exec.Command("g++", args...).CombinedOutput(); err != nil {
				t.Fatalf("g++: %v\n%s", err, out)
			}
		}
		cmd := exec.Command(filepath.Join(dir, "main"))
		stdin, _ := cmd.StdinPipe()
		stdout, _ := cmd.StdoutPipe()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		if _, err := stdout.Read(make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		tr := openTrace(t, Options{})
		tr.target(cmd.Process.Pid)
		stdin.Close()
		cmd.Wait()
		got := slices.DeleteFunc(tr.drain(), func(e event.Event) bool { return e.Op == event.OpExit })
		if len(got) != 2 {
			t.Fatalf("%s: %d events, want 2", types, len(got))
		}
		for j, e := range got {
			device := int32(3)
			if j == 1 {
				device = event.NoDevice
			}
			n := uint64(j)
			if apiName(e.API) != torchSymbols[i] || e.Op != event.OpOutOfMemory || e.Result != event.Success ||
				e.Size != 1000+n || e.Handle != 20+n || e.Part != 300+n || e.Device != device || e.Stack == 0 {
				t.Errorf("%s: event %d: %+v", types, j, e)
			}
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
