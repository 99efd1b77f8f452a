// Package clock reads the kernel's clocks: events, mappings and start times are
// stamped with them, not with the wall clock.
package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// Monotonic returns CLOCK_MONOTONIC, which stands still while the machine is
// suspended.
func Monotonic() time.Duration { return read(unix.CLOCK_MONOTONIC) }

// Boot returns CLOCK_BOOTTIME, which does not: how long ago the machine started.
func Boot() time.Duration { return read(unix.CLOCK_BOOTTIME) }

// Thread returns CLOCK_THREAD_CPUTIME_ID, the processor time that the running thread has
// had.
func Thread() time.Duration { return read(unix.CLOCK_THREAD_CPUTIME_ID) }

// Until returns how long it is until CLOCK_MONOTONIC is the next multiple of d. What is
// done again and again waits for such: a process that sleeps is then woken once for all
// that is due, and not for each of it. A wakeup takes longer than most of what is done.
func Until(d time.Duration) time.Duration { return d - Monotonic()%d }

// read fails for no clock that the kernel has.
func read(id int32) time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(id, &ts)
	return time.Duration(ts.Nano())
}
