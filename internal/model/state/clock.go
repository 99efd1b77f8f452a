package state

import (
	"math"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// A clock has the times of a trace.
type clock struct {
	trace record.Trace
	now   record.Moment
	seen  uint64 // see Seen
}

// Now is the latest time that a record has, in nanoseconds of CLOCK_MONOTONIC.
// Events from before it may still be on their way: see Seen.
func (c *clock) Now() uint64 { return c.now.Time }

// Seen is the moment up to which every event was applied, in nanoseconds of
// CLOCK_MONOTONIC.
func (c *clock) Seen() uint64 { return c.seen }

// Time is that of the last record, by the wall clock. It is not before the start, whatever a damaged
// recording says.
func (c *clock) Time() time.Time {
	if t := c.Wall(c.now.Time); t.After(c.trace.Start) {
		return t
	}
	return c.trace.Start
}

// Start is when the trace began.
func (c *clock) Start() time.Time { return c.trace.Start }

// Wall returns a time of CLOCK_MONOTONIC as that of the wall clock.
func (c *clock) Wall(monotonic uint64) time.Time {
	return c.trace.Boot.Add(time.Duration(min(monotonic, math.MaxInt64)))
}
