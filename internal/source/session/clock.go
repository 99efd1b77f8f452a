package session

import (
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/source/clock"
)

// monotonic is CLOCK_MONOTONIC in nanoseconds, as events have it.
func monotonic() uint64 { return uint64(clock.Monotonic()) }

// moment is one of a time that monotonic gave.
func moment(at uint64, drained bool) *record.Moment {
	return &record.Moment{Time: at, Slept: uint64(clock.Boot() - clock.Monotonic()), Drained: drained}
}

// bootTime returns the wall-clock time at which CLOCK_MONOTONIC was zero,
// without the clock that a recording does not have.
func bootTime() time.Time { return time.Now().Round(0).Add(-clock.Monotonic()) }
