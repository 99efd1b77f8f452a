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

// read fails for no clock that the kernel has.
func read(id int32) time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(id, &ts)
	return time.Duration(ts.Nano())
}
