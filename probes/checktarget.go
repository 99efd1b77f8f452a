package probes

import (
	"fmt"
	"os"

	"github.com/gpumemtrace/gpumemtrace/internal/proc"
)

// CheckTarget returns an error that says why pid cannot be traced, nil if
// nothing is known to be in the way.
func CheckTarget(pid int) error {
	status, err := proc.ReadStatus(pid)
	switch {
	case err != nil:
		return fmt.Errorf("trace process %d: there is no such process", pid)
	case pid == os.Getpid():
		return fmt.Errorf("trace process %d: that is gpumemtrace itself", pid)
	case proc.Ended(pid):
		return fmt.Errorf("trace process %d: it has exited", pid)
	case status.Process != pid:
		return fmt.Errorf("trace process %d: that is a thread; give the process it belongs to", pid)
	}
	exe, _, err := proc.OpenExecutable(pid)
	if err != nil {
		if status.Kernel {
			return fmt.Errorf("trace process %d: that is a kernel thread", pid)
		}
		return CheckSeccomp(pid, true) // another user's, or another namespace's: the probes may still reach it
	}
	defer exe.Close()
	header := make([]byte, 5)
	if _, err := exe.ReadAt(header, 0); err == nil && string(header[:4]) == "\x7fELF" && header[4] == 1 {
		return fmt.Errorf("trace process %d: it is a 32-bit program, which CUDA no longer supports", pid)
	}
	return CheckSeccomp(pid, true)
}
