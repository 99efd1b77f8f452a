// Package clock reads the kernel's clocks, which are those of events, mappings and start times.
package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// Monotonic returns CLOCK_MONOTONIC, which stops while the machine is suspended.
func Monotonic() time.Duration { return read(unix.CLOCK_MONOTONIC) }

// Boot returns CLOCK_BOOTTIME, the time since the machine started.
func Boot() time.Duration { return read(unix.CLOCK_BOOTTIME) }

// Thread returns CLOCK_THREAD_CPUTIME_ID, the processor time of the running thread.
func Thread() time.Duration { return read(unix.CLOCK_THREAD_CPUTIME_ID) }

// Until returns the time until CLOCK_MONOTONIC is the next multiple of d. Regular work waits for such
// moments, so that a sleeping process wakes once for all of it. A wakeup costs more than most of this
// work.
func Until(d time.Duration) time.Duration { return d - Monotonic()%d }

// read cannot fail: the kernel has these clocks.
func read(id int32) time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(id, &ts)
	return time.Duration(ts.Nano())
}
