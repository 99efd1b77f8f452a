package top

import (
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/livetest"
)

// BenchmarkRefresh refreshes the screen with a million live allocations of ten thousand
// call sites: sorted by memory in use, by growth, and with a filter.
func BenchmarkRefresh(b *testing.B) {
	session := livetest.Million(b)
	run := func(name string, prepare func(*Model)) {
		b.Run(name, func(b *testing.B) {
			m := NewModel(live.NewTraceSource(session), Options{Interval: time.Second})
			m.width, m.height = 200, 50
			refresh := func() {
				m.Update(m.request(false)())
				if len(m.View().Content) < 1000 {
					b.Fatal(m.View().Content)
				}
			}
			refresh()
			prepare(m)
			refresh()
			b.ReportAllocs()
			before := m.status.Cost.CPU // the garbage collector included
			for b.Loop() {
				refresh()
			}
			b.ReportMetric(float64(m.status.Cost.CPU-before)/float64(b.N)/1e6, "cpu-ms/op")
		})
	}
	run("overview", func(*Model) {})
	run("growth", func(m *Model) { m.here().by = live.ByGrown })
	run("filter", func(m *Model) { m.setFilter("function_77") })
}
