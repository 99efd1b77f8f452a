package state

import (
	"fmt"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
)

// BenchmarkSums is the sums of 500 processes with 1,000,000 live allocations of 10,000
// call sites: the part that a tracer's lock is held for, and all of it; and where they are
// kept from one time to the next, with so many processes of which something changed.
func BenchmarkSums(b *testing.B) {
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
	for _, active := range []int{0, 1, 50, 500} {
		b.Run(fmt.Sprintf("kept/changed=%d", active), func(b *testing.B) {
			sums := new(Sums)
			var ids []event.Process
			for id := range s.Living {
				ids = append(ids, id)
			}
			look := func() *Totals { return s.View(Want{Totals: true, Sums: sums}).Totals() }
			look()
			b.ReportAllocs()
			for b.Loop() {
				at := s.Now() + 1
				for _, id := range ids[:active] {
					s.Apply(&event.Event{Op: event.OpContextSeen, Proc: id, Time: at, Ctx: 1})
				}
				if t := look(); len(t.Processes) != 500 || len(t.Uses) != 500 || len(t.Groups) != 16 {
					b.Fatal(len(t.Processes), len(t.Uses), len(t.Groups))
				}
			}
		})
	}
}
