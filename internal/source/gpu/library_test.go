//go:build cgo

package gpu

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// oldLibrary is an NVML from before versioned calls, MIG and process lists for
// MPS: calling what it lacks would end this process.
const oldLibrary = `
#include <stdint.h>
#include <string.h>
typedef struct { uint64_t total, free, used; } memory;
typedef struct { uint32_t pid; uint64_t used; } process;
int nvmlInit(void) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int r) { return r == 7 ? "Insufficient Size" : "Stand-in Error"; }
int nvmlSystemGetDriverVersion(char *s, unsigned n) { strncpy(s, "304.1", n); return 0; }
int nvmlDeviceGetCount(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex(unsigned i, void **d) { *d = (void *)(uintptr_t)(i + 1); return i ? 15 : 0; }
int nvmlDeviceGetHandleByUUID(const char *u, void **d) { *d = (void *)1; return strcmp(u, "GPU-old") ? 6 : 0; }
int nvmlDeviceGetUUID(void *d, char *s, unsigned n) { strncpy(s, "GPU-old", n); return 0; }
int nvmlDeviceGetMemoryInfo(void *d, memory *m) { *m = (memory){1 << 30, 1 << 29, 1 << 29}; return 0; }
int nvmlDeviceGetComputeRunningProcesses(void *d, unsigned *n, process *p) {
	if (*n < 2) { *n = 2; return 7; }
	*n = 2;
	p[0] = (process){11, 4096};
	p[1] = (process){12, ~0ull};
	return 0;
}
`

func TestOldLibrary(t *testing.T) {
	dir := t.TempDir()
	src, so := filepath.Join(dir, "nvml.c"), filepath.Join(dir, "libnvidia-ml.so.1")
	if err := os.WriteFile(src, []byte(oldLibrary), 0o644); err != nil {
		t.Fatal(err)
	}
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	// The compiler that built this test's cgo parts.
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-o", so, src).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	n, err := OpenLibrary(so)
	if err != nil {
		t.Fatal(err)
	}
	if v, err := n.DriverVersion(); v != "304.1" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
	if _, _, err := n.CUDAVersion(); !errors.Is(err, ErrMissing) {
		t.Errorf("CUDAVersion: %v", err)
	}
	devices, err := n.Devices()
	if err != nil || len(devices) != 2 {
		t.Fatalf("%+v, %v", devices, err)
	}
	want := Memory{Total: 1 << 30, Used: 1 << 29, Free: 1 << 29, Known: true}
	if d := devices[0]; d.UUID != "GPU-old" || d.Name != "" || d.PCI.Known || d.Minor != -1 || d.Memory != want || d.MIG {
		t.Errorf("%+v", d)
	}
	if devices[1].Reason == "" || devices[1].UUID != "" {
		t.Errorf("%+v", devices[1])
	}
	n.host = fakeHost(true, map[int][]string{11: nil, 12: nil})
	uses, err := n.Processes(devices[0])
	if err != nil || len(uses) != 2 || uses[0] != (ProcessUse{PID: 11, Name: "p11", Bytes: 4096, Known: true}) || uses[1] != (ProcessUse{PID: 12, Name: "p12"}) {
		t.Errorf("%+v, %v", uses, err)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
}

// TestEmptyLibrary: a library that is no NVML is refused before any call.
func TestEmptyLibrary(t *testing.T) {
	if _, err := OpenLibrary("libc.so.6"); !errors.Is(err, ErrMissing) {
		t.Errorf("%v, want ErrMissing", err)
	}
}
