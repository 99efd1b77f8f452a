package recordtest

import (
	"runtime/debug"
	"syscall"
	"testing"
)

// maxGrowth is what a process may take more for small inputs than it had taken before, in
// bytes.
const maxGrowth = 256 << 20

// LimitMemory returns a check that a process which tries small inputs takes little memory.
// Garbage is collected early meanwhile: the check is of what is in use.
func LimitMemory(f *testing.F) func(t testing.TB) {
	f.Helper()
	before := debug.SetMemoryLimit(160 << 20)
	f.Cleanup(func() { debug.SetMemoryLimit(before) })
	base := highest(f)
	return func(t testing.TB) {
		t.Helper()
		if now := highest(t); now > base+maxGrowth {
			t.Fatalf("%d MiB of memory, %d MiB before", now>>20, base>>20)
		}
	}
}

// highest is the most memory that the process has had, in bytes.
func highest(t testing.TB) int64 {
	t.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return usage.Maxrss << 10
}
