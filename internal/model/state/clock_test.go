package state

import (
	"math"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// No time is before the start of the trace, as a damaged recording may have it.
func TestNotBeforeStart(t *testing.T) {
	boot := time.Unix(1_700_000_000, 0)
	for name, c := range map[string]struct {
		start time.Time
		now   uint64
		want  time.Duration
	}{
		"later":                      {boot.Add(time.Hour), uint64(2 * time.Hour), time.Hour},
		"a start after all records":  {boot.Add(time.Hour), uint64(time.Minute), 0},
		"a time beyond all that are": {boot, math.MaxUint64, math.MaxInt64},
	} {
		s := New()
		s.Apply(&record.Trace{Boot: boot, Start: c.start})
		s.Apply(&record.Moment{Time: c.now})
		if got := s.Time().Sub(s.Start()); got != c.want {
			t.Errorf("%s: %v after the start, want %v", name, got, c.want)
		}
		if got := s.View(Want{}).Snapshot().Meta.Duration; got < 0 {
			t.Errorf("%s: a trace of %v", name, got)
		}
	}
}
