package timeline

import (
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// A clock is the time of the latest record, in nanoseconds of CLOCK_MONOTONIC.
type clock struct {
	Trace      record.Trace
	Begin, Now uint64
	Gap        uint64 // when the latest gap of the recording began
	// Rebuilding: after a gap the recording repeats what is live. Until it has done so, sums
	// are too small.
	Rebuilding bool
}

func (c *clock) follow(r record.Record) {
	switch r := r.(type) {
	case *record.Trace:
		c.Trace = *r
	case *record.Cut:
		c.Gap = c.Now
		c.Now, c.Rebuilding = max(c.Now, r.Time), true
	case *record.Moment:
		c.Now, c.Rebuilding = max(c.Now, r.Time), false
	case *event.Event:
		c.Now = max(c.Now, r.Time)
	}
	if c.Begin == 0 && !c.Rebuilding {
		c.Begin = c.Now
	}
}
