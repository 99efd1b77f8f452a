package ledger

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// peaks are the PeakBytes of proc's sites, by stack.
func peaks(l *Ledger) map[uint64]int64 {
	out := map[uint64]int64{}
	for s := range l.Sites {
		if s.Proc == proc && s.PeakBytes != 0 {
			out[s.Stack] += s.PeakBytes
		}
	}
	return out
}

// TestPeaked: each new peak of class device is heard of once, with its process, and
// no other change.
func TestPeaked(t *testing.T) {
	other := event.Process{PID: 8, Start: 80}
	var heard []event.Process
	l := New(Options{Peaked: func(id event.Process) bool {
		heard = append(heard, id)
		return true
	}})
	for _, tt := range []struct {
		name string
		e    *event.Event
		want []event.Process
		peak int64
	}{
		{"the first", ev(1, alloc, at(16, 100)), []event.Process{proc}, 100},
		{"one that failed", ev(2, alloc, at(32, 100), result(2)), nil, 100},
		{"an end", ev(3, free, at(16, 0)), nil, 100},
		{"up to the peak again", ev(4, alloc, at(48, 100)), nil, 100},
		{"beyond", ev(5, alloc, at(64, 1)), []event.Process{proc}, 101},
		{"memory of another class", ev(6, alloc, at(80, 1000), kind(event.KindHost)), nil, 101},
		{"what the kernel driver hands out", ev(7, alloc, at(96, 1000), kind(event.KindContext)), nil, 101},
		{"another process", ev(8, alloc, at(16, 7), of(other)), []event.Process{other}, 101},
	} {
		heard = nil
		l.Apply(tt.e)
		if diff := cmp.Diff(tt.want, heard); diff != "" {
			t.Errorf("%s: heard of the wrong peaks (-want +got):\n%s", tt.name, diff)
		}
		if got := l.lookup(proc).sites.peak[event.ClassDevice]; got != tt.peak {
			t.Errorf("%s: peak %d, want %d", tt.name, got, tt.peak)
		}
	}
	if got := l.lookup(event.Process{PID: 99}).sites.peak[event.ClassDevice]; got != 0 {
		t.Errorf("peak %d of a process that made no call", got)
	}
}

// TestMark: at a peak of another ledger each site's PeakBytes is what it holds,
// also if it holds less than before, and what comes after changes none of it.
func TestMark(t *testing.T) {
	driver := kind(event.KindContext)
	l := New(Options{})
	expect := func(when string, want map[uint64]int64) {
		t.Helper()
		if diff := cmp.Diff(want, peaks(l)); diff != "" {
			t.Errorf("%s: held at the peak (-want +got):\n%s", when, diff)
		}
	}
	l.Apply(ev(1, alloc, at(16, 100), driver, stack(1)))
	l.Apply(ev(2, alloc, at(32, 10), driver, stack(2)))
	expect("no peak yet", map[uint64]int64{})
	l.MarkPeak(proc)
	l.Apply(ev(3, free, at(16, 0)))
	l.Apply(ev(4, alloc, at(48, 5), driver, stack(2)))
	l.Apply(ev(5, alloc, at(64, 7), driver, stack(3)))
	expect("after the first", map[uint64]int64{1: 100, 2: 10})
	l.MarkPeak(event.Process{PID: 99})
	expect("after another process's", map[uint64]int64{1: 100, 2: 10})
	l.MarkPeak(proc)
	expect("after the second", map[uint64]int64{2: 15, 3: 7})
}

// TestPeakAcross lets two ledgers follow the same processes: what the sites of one
// held at the peak of the other adds up to what it held in all at that moment.
func TestPeakAcross(t *testing.T) {
	below := New(Options{MaxSites: 50})
	at := map[event.Process]int64{} // held below at the last peak
	above := New(Options{Peaked: func(id event.Process) bool {
		at[id] = 0
		for h := range below.UseByDevice(id) {
			at[id] += h.Bytes
		}
		below.MarkPeak(id)
		return true
	}})
	g := newGenerator(randomChooser{rand.New(rand.NewPCG(7, 7))})
	ended := map[event.Process]bool{}
	compared := 0
	for i := range 100_000 {
		e := g.next()
		above.Apply(e)
		switch e.Op {
		case event.OpExit: // below may drop it to have room for sites
			below.Apply(e)
			ended[e.Proc] = true
		case event.OpExec:
			below.Apply(e)
		default:
			e.Op, e.Time, e.Kind = event.OpFree, g.now, event.KindBacking+event.Kind(g.choose(4))
			if g.choose(2) == 0 {
				e.Op, e.Size = event.OpAlloc, 1+uint64(g.choose(1000))
			}
			e.Addr, e.Space, e.Result = 1+uint64(g.choose(100)), 0, event.Success
			below.Apply(e)
		}
		if i%100 != 0 {
			continue
		}
		got := map[event.Process]int64{}
		for s := range below.Sites {
			if onDevice(s.Kind) {
				got[s.Proc] += s.PeakBytes
			}
		}
		for id, want := range at {
			if got[id] != want && !ended[id] {
				t.Fatalf("operation %d: the sites of %v held %d at the peak, all of it was %d", i, id, got[id], want)
			}
			if want != 0 {
				compared++
			}
		}
	}
	if compared == 0 || lossOf(below, "sites_folded") == 0 {
		t.Errorf("%d peaks were compared, sites folded %d times", compared, lossOf(below, "sites_folded"))
	}
}
