package session

import (
	"time"

	"golang.org/x/sys/unix"
)

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
func bootTime() time.Time { return time.Now().Round(0).Add(-time.Duration(monotonic())) }
