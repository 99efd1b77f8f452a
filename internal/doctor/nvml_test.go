//go:build cgo

package doctor

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/source/gpu"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// standIn is an NVML with two GPUs, of which the second is lost. On the first
// the process TEST_NVML_PID holds 640 MiB.
const standIn = `
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
typedef struct { uint64_t total, free, used; } memory;
typedef struct { uint32_t pid; uint64_t used; } process;
int nvmlInit(void) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int r) { return r == 7 ? "Insufficient Size" : "GPU is lost"; }
int nvmlSystemGetDriverVersion(char *s, unsigned n) { strncpy(s, "580.1", n); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *v) { *v = 13000; return 0; }
int nvmlDeviceGetCount(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex(unsigned i, void **d) { *d = (void *)(uintptr_t)(i + 1); return i ? 15 : 0; }
int nvmlDeviceGetHandleByUUID(const char *u, void **d) { *d = (void *)1; return strcmp(u, "GPU-a") ? 6 : 0; }
int nvmlDeviceGetUUID(void *d, char *s, unsigned n) { strncpy(s, "GPU-a", n); return 0; }
int nvmlDeviceGetName(void *d, char *s, unsigned n) { strncpy(s, "Stand-in", n); return 0; }
int nvmlDeviceGetMinorNumber(void *d, unsigned *n) { *n = 0; return 0; }
int nvmlDeviceGetMemoryInfo(void *d, memory *m) { *m = (memory){1ull << 34, 1ull << 33, 1ull << 33}; return 0; }
int nvmlDeviceGetComputeRunningProcesses(void *d, unsigned *n, process *p) {
	if (*n < 1) { *n = 1; return 7; }
	*n = 1;
	p[0] = (process){atoi(getenv("TEST_NVML_PID")), 640 << 20};
	return 0;
}
`

// From a library through NVML's binding to what is said of a process.
func TestStandInNVML(t *testing.T) {
	dir := t.TempDir()
	src, so := filepath.Join(dir, "nvml.c"), filepath.Join(dir, "libnvidia-ml.so.1")
	if err := os.WriteFile(src, []byte(standIn), 0o600); err != nil {
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
	t.Setenv("CUDA_VISIBLE_DEVICES", "")
	pid := spawn(t, 0, "sh", "-c", "echo; read x")
	t.Setenv("TEST_NVML_PID", strconv.Itoa(pid))

	g := readGPUs(gpu.OpenLibrary(so))
	defer g.close()
	checks := checkGPUs(g)
	wellFormed(t, checks)
	for _, w := range []want{
		{"NVML", OK, "driver 580.1, CUDA 13.0", ""},
		{"GPU 0", OK, "Stand-in, GPU-a, 8.00 GiB used of 16.0 GiB", ""},
		{"GPU 1", Warn, "GPU is lost", "Xid"},
	} {
		w.verify(t, checks)
	}

	e := readEnvironment()
	tg := readTarget(pid, e, g)
	checks = checkTarget(tg)
	wellFormed(t, checks)
	if e.pidNamespace != proc.InitialPID {
		// There a pid is believed only of a process that has the GPU's device
		// file open, which nothing has here.
		want{check: "GPU memory on GPU 0"}.verify(t, checks)
		return
	}
	want{"GPU memory on GPU 0", OK, "640 MiB", ""}.verify(t, checks)
	// Its environment and its /dev say that it sees none: NVML knows better.
	want{"device ordinals", OK, "the process uses only GPU 0 (Stand-in)", ""}.verify(t, checks)
}
