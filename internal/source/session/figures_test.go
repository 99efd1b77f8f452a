package session_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/alert"
	"github.com/gpumemtrace/gpumemtrace/internal/agent/metrics"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/source/session"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

var _ metrics.Source = (*session.Session)(nil)

// Figures are exact at once, and soon say whose memory it is although nobody asks for names.
// Counters have what processes allocated that have ended since, and rules hear of what
// fails.
func TestFigures(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "init")
	s := trace(t, session.Options{All: true})
	rule, err := alert.Parse("oom")
	if err != nil {
		t.Fatal(err)
	}
	watch := alert.NewWatch([]alert.Rule{rule})
	figures := func() (live, allocated, freed int64, owner string) {
		for _, g := range s.Totals().Groups {
			if g.Kind == event.KindDevice {
				live, allocated, freed = live+g.LiveBytes, allocated+g.AllocBytes, freed+g.FreedBytes
				if g.LiveBytes > 0 {
					owner = g.Owner
				}
			}
		}
		return live, allocated, freed, owner
	}
	run(t, p, "repeat 20 cuMemAlloc_v2 1m", "cuMemFree_v2", "fail cuMemAlloc_v2 1 2; expect 2 cuMemAlloc_v2 77m")
	eventually(t, func() string {
		if live, _, _, _ := figures(); live != 19<<20 {
			return fmt.Sprintf("%d live", live)
		}
		return ""
	})
	eventually(t, func() string {
		if _, allocated, freed, owner := figures(); owner != "application" || allocated != 20<<20 || freed != 1<<20 {
			return fmt.Sprintf("%d allocated, %d freed by %q", allocated, freed, owner)
		}
		return ""
	})
	if told := watch.Observe(time.Minute, s.Totals()); len(told) != 1 || told[0].Subject.PID != p.PID() || told[0].Value != 77<<20 {
		t.Errorf("told %+v", told)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string {
		s.Report(false)
		if live, allocated, freed, _ := figures(); live != 0 || allocated != 20<<20 || freed != 20<<20 {
			return fmt.Sprintf("after its end %d live, %d allocated, %d freed", live, allocated, freed)
		}
		return ""
	})
	if err := s.Measure(t.Context(), 10*time.Millisecond); err != nil || s.RunTime().Measured == 0 {
		t.Errorf("%+v, %v", s.RunTime(), err)
	}
}
