package top

import (
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
)

// A benchSession is a state of a million live allocations of ten thousand call sites.
type benchSession struct{ *state.State }

func (s benchSession) Done() <-chan struct{}         { return nil }
func (s benchSession) View(w state.Want) *state.View { return s.State.View(w) }

func million(b *testing.B) benchSession {
	const live = 1_000_000
	job := &recordtest.Training{Stacks: 5000, Depth: 40, Live: 2 * live, Pieces: 2 * live}
	s := state.New()
	job.Begin(s.Apply)
	for n := 0; n < live; {
		r := job.Next()
		if e, ok := r.(*event.Event); ok && (e.Op == event.OpAlloc || e.Op == event.OpHandleCreate) {
			n++
		}
		s.Apply(r)
	}
	s.Apply(&record.Moment{Time: s.Now(), Drained: true})
	if sites := s.Size().Sites; sites != 10_000 {
		b.Fatal(sites)
	}
	return benchSession{s}
}

// BenchmarkRefresh is one refresh of the screen with a million live allocations of ten
// thousand call sites: all of it, and the part for which a trace's lock is held; with
// the page of a stack, of which the live allocations are gone through; and sorted by a
// text, with a filter.
func BenchmarkRefresh(b *testing.B) {
	session := million(b)
	run := func(name string, prepare func(*Model)) {
		b.Run(name, func(b *testing.B) {
			m := NewModel(Live(session), Options{Interval: time.Second})
			m.width, m.height = 200, 50
			refresh := func() {
				m.Update(m.look(false)())
				if len(m.View().Content) < 1000 {
					b.Fatal(m.View().Content)
				}
			}
			refresh()
			prepare(m)
			refresh()
			b.ReportAllocs()
			before := cost().CPU // with what the garbage collector takes beside
			for b.Loop() {
				refresh()
			}
			b.ReportMetric(float64(cost().CPU-before)/float64(b.N)/1e6, "cpu-ms/op")
		})
	}
	run("overview", func(*Model) {})
	run("growth", func(m *Model) { m.here().by = ByGrown })
	run("filter", func(m *Model) { m.setFilter("function_77") })
	b.Run("locked", func(b *testing.B) {
		l := newLooker()
		for b.Loop() {
			session.View(l.want(Query{}))
		}
	})
	b.Run("allocations", func(b *testing.B) {
		l := newLooker()
		v := session.View(l.want(Query{}))
		var of ledger.SiteKey
		for key := range v.Sites {
			of = key
			break
		}
		for b.Loop() {
			if got := l.look(session.View(l.want(Query{Allocations: &of}))); len(got.Snapshot.Live) == 0 {
				b.Fatal("none")
			}
		}
	})
}
