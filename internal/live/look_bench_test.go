package live

import (
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/livetest"
)

// BenchmarkLook takes a View of a million live allocations, for which a trace's lock is
// held, and goes through the live allocations of one call site.
func BenchmarkLook(b *testing.B) {
	session := livetest.Million(b)
	b.Run("locked", func(b *testing.B) {
		l := newMaker()
		for b.Loop() {
			session.View(l.want(Query{}))
		}
	})
	b.Run("allocations", func(b *testing.B) {
		l := newMaker()
		v := session.View(l.want(Query{}))
		var of ledger.SiteKey
		for key := range v.Sites {
			of = key
			break
		}
		for b.Loop() {
			if got := l.snapshot(session.View(l.want(Query{Allocations: &of}))); len(got.Snapshot.Live) == 0 {
				b.Fatal("none")
			}
		}
	})
}
