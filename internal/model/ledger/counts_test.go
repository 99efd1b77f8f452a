package ledger

import (
	"math/rand/v2"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// What FetchCounts gives, whenever it is asked, and of sites that go as they do, adds up to what
// was allocated, freed and refused: call sites that are folded, and processes that are
// dropped, take nothing with them.
func TestFetchCounts(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var got, want Counts
		left := 0
		take := func(s *Site) {
			c := s.FetchCounts()
			if min(c.AllocObjects, c.AllocBytes, c.FreedObjects, c.FreedBytes, c.FailedObjects, c.FailedBytes) < 0 {
				t.Fatalf("seed %d: %+v", seed, c)
			}
			got.Add(&c)
		}
		l := New(Options{MaxSites: 8, MaxEnded: 2, MaxLive: 40, MaxUnattributed: 1000, Leaving: func(s *Site) { left++; take(s) }})
		live := map[event.Process]map[uint64]int64{}
		for i := range uint64(2000) {
			p := event.Process{PID: 1 + rng.Uint32N(3), Start: event.StartUnit * (1 + i/500)}
			if live[p] == nil {
				live[p] = map[uint64]int64{}
			}
			switch n := rng.IntN(10); {
			case n == 0 && i%500 > 450:
				l.Apply(&event.Event{Op: event.OpExit, Time: i + 1, Proc: p})
				l.Release(p)
				for addr, size := range live[p] {
					want.FreedObjects, want.FreedBytes = want.FreedObjects+1, want.FreedBytes+size
					delete(live[p], addr)
				}
				l.Forget(p)
				continue
			case n == 1:
				for s := range l.Sites {
					take(s)
				}
				continue
			}
			e := &event.Event{Op: event.OpAlloc, Kind: event.KindDevice, Time: i + 1, Proc: p, Stack: rng.Uint64N(20), API: 1, Addr: 4096 * (1 + rng.Uint64N(30)), Size: 1 + rng.Uint64N(1000)}
			size, there := live[p][e.Addr]
			if there {
				e.Op = event.OpFree
			}
			if rng.IntN(8) == 0 {
				e.Result = event.OutOfMemory
			}
			if _, gone := l.gone.set[p]; gone {
				continue
			}
			l.Apply(e)
			switch {
			case e.Result != event.Success && !there:
				want.FailedObjects, want.FailedBytes = want.FailedObjects+1, want.FailedBytes+int64(e.Size)
			case e.Result != event.Success:
			case there:
				want.FreedObjects, want.FreedBytes = want.FreedObjects+1, want.FreedBytes+size
				delete(live[p], e.Addr)
			default:
				want.AllocObjects, want.AllocBytes = want.AllocObjects+1, want.AllocBytes+int64(e.Size)
				live[p][e.Addr] = int64(e.Size)
			}
		}
		for s := range l.Sites {
			take(s)
		}
		for s := range l.Sites {
			if c := s.FetchCounts(); c != (Counts{}) || s.HasUnfetchedCounts() {
				t.Errorf("seed %d: asked again, %+v", seed, c)
			}
		}
		if got != want || left == 0 {
			t.Errorf("seed %d: %+v after %d sites left, want %+v", seed, got, left, want)
		}
	}
}
