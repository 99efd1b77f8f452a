package session

import (
	"bytes"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpumemtrace/gpumemtrace/probes"
)

// checkTarget returns an error that says why pid cannot be traced.
func checkTarget(pid int) error {
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
	exe, err := os.Open(fmt.Sprintf("/proc/%d/exe", pid))
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

// monotonic is CLOCK_MONOTONIC in nanoseconds, as events have it.
func monotonic() uint64 { return clock(unix.CLOCK_MONOTONIC) }

// sleptTime is how long the machine was suspended since boot: what start times
// count and events do not.
func sleptTime() uint64 { return clock(unix.CLOCK_BOOTTIME) - clock(unix.CLOCK_MONOTONIC) }

func clock(id int32) uint64 {
	var ts unix.Timespec
	if unix.ClockGettime(id, &ts) != nil {
		return 0
	}
	return uint64(ts.Nano())
}

// bootTime returns the wall-clock time at which CLOCK_MONOTONIC was zero.
func bootTime() time.Time { return time.Now().Add(-time.Duration(monotonic())) }
