// Package testcuda builds and drives stand-in CUDA libraries for machines
// without a GPU.
//
// The libraries export CUDA's driver and runtime functions under their exact
// names and ABI, so that real uprobes attach to them. No memory is behind a
// device pointer; what is real is the book-keeping: addresses are distinct and
// reused, contexts, handles, mappings and pools live and die as CUDA's do, and
// the driver keeps an exact ledger that a test can compare with ([Stats]).
//
// Below it, libtestrm.so answers requests of libcuda's to the kernel driver, so
// that the sum of what those asked for is what NVML would say.
//
// These environment variables change the driver:
//
//	TESTCUDA_TOTAL  bytes of each of the two devices, 80 GiB unless set
//	TESTCUDA_FAIL   API:NTH:CODE,... the NTH call (0: every one) returns CODE
//	TESTCUDA_PHYSICAL  bytes that the kernel driver has of each device, 1 TiB unless set
//	TESTCUDA_INSTANCE  the GPU instance of MIG that the process is in
package testcuda

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// A Program is one variant of a workload.
type Program string

const (
	// Workload runs scripts (src/workload.c); libcuda and libcudart are linked.
	Workload Program = "workload"
	// WorkloadLate links neither: both come by dlopen.
	WorkloadLate Program = "workload-late"
	// WorkloadStatic has libcudart inside, symbols kept.
	WorkloadStatic Program = "workload-static"
	// WorkloadStripped is WorkloadStatic without symbols.
	WorkloadStripped Program = "workload-stripped"
	// WorkloadNoFP is Workload without frame pointers.
	WorkloadNoFP Program = "workload-nofp"
	// Train is a training loop with a leak (src/train.c).
	Train Program = "train"
	// Hammer allocates as fast as it can (src/hammer.c).
	Hammer Program = "hammer"
)

// Libs says which build of the libraries a program gets.
type Libs string

const (
	// LibsDefault have frame pointers.
	LibsDefault Libs = "."
	// LibsNoFP have none, as NVIDIA's.
	LibsNoFP Libs = "nofp"
	// LibsOld has a driver without virtual memory management, pools,
	// stream-ordered allocation and cuGetProcAddress.
	LibsOld Libs = "old"
)

// A Kit is the set of built files.
type Kit struct {
	Dir        string // absolute
	LibCUDA    string // libcuda.so.1
	LibCUDAOld string // of LibsOld
	LibCUDART  string // libcudart.so.13
}

// Path returns the path of a program.
func (k *Kit) Path(p Program) string { return filepath.Join(k.Dir, string(p)) }

// Env returns the variables that make a program of k use libs.
func (k *Kit) Env(libs Libs) []string {
	path := k.Dir
	if libs != LibsDefault && libs != "" {
		path = filepath.Join(k.Dir, string(libs)) + ":" + path
	}
	return []string{"LD_LIBRARY_PATH=" + path}
}

// DefaultDir returns the folder of the user's cache where kits are built.
func DefaultDir() (string, error) {
	cache, err := os.UserCacheDir()
	return filepath.Join(cache, "gpumemtrace-testcuda"), err
}

var shared = sync.OnceValues(func() (*Kit, error) {
	dir, err := DefaultDir()
	if err != nil {
		dir, err = os.MkdirTemp("", "gpumemtrace-testcuda-")
	}
	if err != nil {
		return nil, err
	}
	return Build(dir)
})

// Get returns the kit that all of a user's tests share, in [DefaultDir], or the
// one that was built in the folder $TESTCUDA_KIT. Without a C compiler it skips the
// test, or fails it when the environment says CI=true.
func Get(tb testing.TB) *Kit {
	tb.Helper()
	if dir := os.Getenv("TESTCUDA_KIT"); dir != "" {
		return kitIn(dir)
	}
	if _, err := exec.LookPath(compiler); err != nil {
		if os.Getenv("CI") == "true" {
			tb.Fatalf("find a C compiler: %v", err)
		}
		tb.Skipf("no C compiler: %v", err)
	}
	kit, err := shared()
	if err != nil {
		tb.Fatal(err)
	}
	return kit
}
