package alert

import (
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
)

// BenchmarkObserve is a look of four rules at 500 processes.
func BenchmarkObserve(b *testing.B) {
	s := state.New()
	recordtest.Crowd(500, 200, 20, s.Apply)
	totals := s.View(state.Want{Totals: true}).Totals()
	w := NewWatch([]Rule{parsed(b, "oom"), parsed(b, "gpu.used > 90%"), parsed(b, "process.live > 1GiB for 10m"), parsed(b, "leak")})
	at := time.Duration(0)
	b.ReportAllocs()
	for b.Loop() {
		at += 10 * time.Second
		w.Observe(at, totals)
	}
}
