package session

import (
	"bytes"
	"fmt"
	"os"

	"github.com/gpumemtrace/gpumemtrace/internal/proc"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// CheckTarget returns an error that says why pid cannot be traced, nil if
// nothing is known to be in the way.
func CheckTarget(pid int) error {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	switch {
	case err != nil:
		return fmt.Errorf("trace process %d: there is no such process", pid)
	case pid == os.Getpid():
		return fmt.Errorf("trace process %d: that is gpumemtrace itself", pid)
	case over(status):
		return fmt.Errorf("trace process %d: it has exited", pid)
	case !bytes.Contains(status, fmt.Appendf(nil, "\nTgid:\t%d\n", pid)):
		return fmt.Errorf("trace process %d: that is a thread; give the process it belongs to", pid)
	}
	exe, _, err := proc.OpenExecutable(pid)
	if err != nil {
		if bytes.Contains(status, []byte("\nKthread:\t1")) {
			return fmt.Errorf("trace process %d: that is a kernel thread", pid)
		}
		return probes.CheckSeccomp(pid, true) // another user's, or another namespace's: the probes may still reach it
	}
	defer exe.Close()
	header := make([]byte, 5)
	if _, err := exe.ReadAt(header, 0); err == nil && string(header[:4]) == "\x7fELF" && header[4] == 1 {
		return fmt.Errorf("trace process %d: it is a 32-bit program, which CUDA no longer supports", pid)
	}
	return probes.CheckSeccomp(pid, true)
}

// over tells from /proc/PID/status whether a process has ended and was not
// waited for yet.
func over(status []byte) bool {
	return bytes.Contains(status, []byte("\nState:\tZ")) || bytes.Contains(status, []byte("\nState:\tX"))
}
