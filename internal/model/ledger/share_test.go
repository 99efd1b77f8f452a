package ledger

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

var (
	hog       = event.Process{PID: 100, Start: event.StartUnit}
	neighbour = event.Process{PID: 200, Start: event.StartUnit}
)

// sitesOf returns what a process has in use by stack; synthetic sites go by 0.
func sitesOf(l *Ledger, id event.Process) map[uint64]int64 {
	out := map[uint64]int64{}
	for s := range eachSite(l, id) {
		if s.InuseBytes != 0 {
			out[s.Stack] += s.InuseBytes
		}
	}
	return out
}

func totalsOf(l *Ledger, id event.Process) ProcessTotals {
	for p := range l.Processes {
		if p.Proc == id {
			return p
		}
	}
	return ProcessTotals{}
}

// allocations makes n live allocations of one byte each, from another stack each if
// stacks is set.
func allocations(l *Ledger, id event.Process, now *uint64, n int, stacks bool) {
	for range n {
		*now++
		e := ev(*now, alloc, at(*now<<8, 1), of(id), stack(7))
		if stacks {
			e.Stack = *now
		}
		l.Apply(e)
	}
}

// A process that has used up all rows loses some, and a process that comes later has
// its stacks. When the first one ends the room is everybody's again.
func TestRowsAreShared(t *testing.T) {
	l, now := New(Options{MaxLive: 1000, MaxUnattributed: 10_000}), uint64(0)
	allocations(l, hog, &now, 1500, false)
	first := now
	allocations(l, neighbour, &now, 300, true)
	allocations(l, hog, &now, 1500, false)
	if got := sitesOf(l, neighbour); len(got) != 300 || got[0] != 0 {
		t.Errorf("the neighbour has %d stacks, and %d bytes under none", len(got), got[0])
	}
	rows := map[event.Process]int{}
	for a := range l.Live {
		rows[a.Proc]++
	}
	if rows[neighbour] != 300 || rows[hog] < 500 || rows[hog]+rows[neighbour] > 1000 {
		t.Errorf("rows: %v", rows)
	}
	if p := totalsOf(l, hog); p.Inuse != 3000 || p.LiveObjects != 3000 || p.Unattributed != 3000-int64(rows[hog]) || p.Peak != 3000 {
		t.Errorf("the hog's totals: %+v", p)
	}
	if got := sitesOf(l, hog); got[7] != int64(rows[hog]) || got[0] != 3000-got[7] {
		t.Errorf("the hog has %v by stack, %d rows", got, rows[hog])
	}
	for a := first + 1; a <= first+300; a++ { // of the neighbour
		now++
		l.Apply(ev(now, free, at(a<<8, 0), of(neighbour)))
	}
	for a := uint64(1); a <= first; a++ {
		now++
		l.Apply(ev(now, free, at(a<<8, 0), of(hog)))
	}
	if p := totalsOf(l, hog); p.Inuse != 1500 || p.UnmatchedFrees != 0 {
		t.Errorf("the hog's totals after frees: %+v", p)
	}
	now++
	l.Apply(ev(now, event.OpExit, of(hog)))
	l.Forget(hog)
	allocations(l, neighbour, &now, 1000, true)
	if got := sitesOf(l, neighbour); len(got) != 1000 || got[0] != 0 {
		t.Errorf("after the hog's end the neighbour has %d stacks, and %d bytes under none", len(got), got[0])
	}
}

// The same with memory of the VMM API, which has rows of another kind, and mappings.
func TestPhysicalMemoryIsShared(t *testing.T) {
	l, now := New(Options{MaxLive: 1000, MaxMappings: 1000}), uint64(0)
	chunk := func(id event.Process) {
		now++
		n := now
		for _, e := range []*event.Event{
			ev(now, create, vmm, handle(n), size(4096), stack(n), of(id)),
			ev(now, mapped, handle(n), at(n<<12, 4096), of(id)),
			ev(now, release, handle(n), of(id)),
		} {
			l.Apply(e)
		}
	}
	for range 1500 {
		chunk(hog)
	}
	first := now
	for range 300 {
		chunk(neighbour)
	}
	if got := sitesOf(l, neighbour); len(got) != 300 || got[0] != 0 {
		t.Errorf("the neighbour has %d stacks, and %d bytes under none", len(got), got[0])
	}
	for n := first + 1; n <= now; n++ {
		l.Apply(ev(1<<20, unmap, at(n<<12, 4096), of(neighbour)))
	}
	if p := totalsOf(l, neighbour); p.Inuse != 0 || p.UnknownBytes != 0 {
		t.Errorf("the neighbour after it unmapped all: %+v", p)
	}
	if p := totalsOf(l, hog); p.Inuse+p.UnknownBytes != 1500*4096 {
		t.Errorf("the hog: %+v", p)
	}
}

// A process with more call sites than there is room for loses its own.
func TestSitesAreShared(t *testing.T) {
	for _, holds := range []bool{true, false} {
		t.Run(fmt.Sprint("holds ", holds), func(t *testing.T) {
			heard := places{}
			l, now := New(Options{MaxSites: 1000, Listener: placeHooks{hooks{}, heard}}), uint64(0)
			allocations(l, neighbour, &now, 100, true)
			for i := uint64(1); i <= 100; i++ { // the counters of sites that hold nothing are detail too
				now++
				if i <= 50 {
					l.Apply(ev(now, free, at(i<<8, 0), of(neighbour)))
				}
			}
			if holds {
				for n := uint64(1); n <= 500; n++ {
					now++
					l.Apply(ev(now, create, vmm, handle(n), size(1), stack(now), of(hog)))
					l.Apply(ev(now, mapped, handle(n), at(1<<40+n, 1), of(hog)))
				}
			}
			for range 3000 {
				allocations(l, hog, &now, 1, true)
				if !holds {
					l.Apply(ev(now, free, at(now<<8, 0), of(hog)))
				}
			}
			allocations(l, neighbour, &now, 200, true)
			own, counted := 0, int64(0)
			for s := range eachSite(l, neighbour) {
				if !s.Synthetic {
					own++
					counted += s.AllocObjects
				}
			}
			if own != 300 || counted != 300 {
				t.Errorf("the neighbour has %d call sites with %d allocations, want 300", own, counted)
			}
			own, counted = 0, 0
			inuse, peak := int64(0), int64(0)
			for s := range eachSite(l, hog) {
				if !s.Synthetic {
					own++
				}
				counted += s.AllocObjects
				inuse += s.InuseBytes
				peak += s.PeakBytes
			}
			want, most := int64(0), int64(1)
			if holds {
				want, most = 3500, 3500
			}
			if own < 400 || own > 700 || counted != max(3000, want) || inuse != want || peak != most {
				t.Errorf("the hog has %d call sites, %d allocations, %d bytes in use, %d at the peak, want %d and %d", own, counted, inuse, peak, want, most)
			}
			heard.compare(t, l, 0)
			compareSums(t, l, hog)
			for i := uint64(1); i <= now; i++ {
				l.Apply(ev(now, free, at(i<<8, 0), of(hog)))
				l.Apply(ev(now, release, handle(i), of(hog)))
				l.Apply(ev(now, unmap, at(1<<40+i, 1), of(hog)))
			}
			if p := totalsOf(l, hog); p.Inuse != 0 || p.LiveObjects != 0 {
				t.Errorf("the hog after it freed all: %+v", p)
			}
		})
	}
}

// Beyond rows of a call site sizes alone are kept: of those, too, whoever has most gives.
func TestUnattributedAreShared(t *testing.T) {
	l, now := New(Options{MaxLive: 100, MaxUnattributed: 1000}), uint64(0)
	allocations(l, hog, &now, 5000, false)
	allocations(l, neighbour, &now, 400, false) // more than its share of rows
	if p := totalsOf(l, neighbour); p.Inuse != 400 || p.UnknownBytes != 0 {
		t.Errorf("the neighbour: %+v", p)
	}
	if p := totalsOf(l, hog); p.Inuse+p.UnknownBytes != 5000 || p.Inuse == 0 {
		t.Errorf("the hog: %+v", p)
	}
}

// Many processes of one user have what that user has.
func TestUsersShare(t *testing.T) {
	user := func(id event.Process) (uint32, bool) {
		if id == neighbour {
			return 1000, true
		}
		return 666, true
	}
	l, now := New(Options{MaxLive: 10_000, MaxSites: 2000, User: user}), uint64(0)
	for i := range uint32(500) {
		allocations(l, event.Process{PID: 1000 + i, Start: event.StartUnit}, &now, 30, true)
	}
	allocations(l, neighbour, &now, 800, true)
	for i := range uint32(500) {
		allocations(l, event.Process{PID: 1000 + i, Start: event.StartUnit}, &now, 10, true)
	}
	if got := sitesOf(l, neighbour); len(got) != 800 || got[0] != 0 {
		t.Errorf("the neighbour has %d stacks, and %d bytes under none", len(got), got[0])
	}
}

// A user that is known only after the process has allocated counts from then on.
func TestUserIsToldLater(t *testing.T) {
	l, now := New(Options{MaxLive: 1000}), uint64(0)
	for i := range uint32(100) {
		id := event.Process{PID: 1000 + i, Start: event.StartUnit}
		allocations(l, id, &now, 9, false)
		l.SetUser(id, 666)
	}
	allocations(l, neighbour, &now, 400, true)
	if got := sitesOf(l, neighbour); len(got) != 400 || got[0] != 0 {
		t.Errorf("the neighbour has %d stacks, and %d bytes under none", len(got), got[0])
	}
}

// Who lost detail is named.
func TestShortages(t *testing.T) {
	l, now := New(Options{MaxLive: 100, MaxSites: 1000}), uint64(0)
	allocations(l, hog, &now, 150, false)
	allocations(l, neighbour, &now, 10, false)
	var got []Shortage
	for s := range l.Shortages {
		got = append(got, s)
	}
	want := []Shortage{{Proc: hog, Table: SharedRows, Used: 88, Max: 100, Lost: 62}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("shortages differ (-want +got):\n%s", diff)
	}
}

// The same events leave the same rows, however often a full table made room.
func TestSharesAreDeterministic(t *testing.T) {
	run := func() map[liveRow]int {
		g := newGenerator(randomChooser{rand.New(rand.NewPCG(5, 5))})
		g.calm = true
		l := New(Options{MaxLive: 20, MaxSites: 10, MaxUnattributed: 40, MaxMappings: 10})
		for range 20_000 {
			e := g.next()
			l.Apply(e)
		}
		out := map[liveRow]int{}
		for a := range l.Live {
			out[liveRow{a.Proc, a.Handle, a.Space, a.Addr, a.Size, a.Time, a.Site.SiteKey}]++
		}
		return out
	}
	compareMaps(t, "the second time", "live allocations", run(), run())
}

// Call sites of ended processes make room for those that live, of the same user alone:
// nobody may have been told of another's yet.
func TestEndedSitesAreShared(t *testing.T) {
	user := func(id event.Process) (uint32, bool) { return id.PID % 2, true }
	l, now := New(Options{MaxSites: 100, User: user}), uint64(0)
	ended := func(pid uint32) event.Process {
		id := event.Process{PID: pid, Start: event.StartUnit}
		allocations(l, id, &now, 10, true)
		now++
		l.Apply(ev(now, event.OpExit, of(id)))
		l.Release(id)
		return id
	}
	mine, his := ended(2), ended(3)
	allocations(l, event.Process{PID: 5, Start: event.StartUnit}, &now, 300, true)
	if totalsOf(l, mine).Allocated != 10 || totalsOf(l, his).Allocated != 0 {
		t.Errorf("mine: %+v, his: %+v", totalsOf(l, mine), totalsOf(l, his))
	}
}

// eachSite yields the call sites of one process.
func eachSite(l *Ledger, id event.Process) iter.Seq[*Site] {
	return func(yield func(*Site) bool) { l.lookup(id).sites.each(yield) }
}
