package state

import (
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
)

// BenchmarkScrape is the totals of 500 processes with 1,000,000 live allocations of 10,000
// call sites: the part that a tracer's lock is held for, and all of it.
func BenchmarkScrape(b *testing.B) {
	s := New()
	recordtest.Crowd(500, benchLive/500, 20, s.Apply)
	b.Run("view", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			s.View(Want{Totals: true})
		}
	})
	b.Run("totals", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			t := s.View(Want{Totals: true}).Totals()
			if len(t.Processes) != 500 || len(t.Uses) != 500 || len(t.Groups) != 16 {
				b.Fatal(len(t.Processes), len(t.Uses), len(t.Groups))
			}
		}
	})
}
