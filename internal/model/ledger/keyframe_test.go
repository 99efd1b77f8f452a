package ledger

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// rebuilt returns a new Ledger that starts at l's keyframe.
func rebuilt(l *Ledger) *Ledger {
	out := New(l.opt)
	l.Keyframe(func(e *event.Event) bool {
		out.Apply(e)
		return true
	})
	return out
}

// living is what a Keyframe promises to rebuild, of the processes that have not
// ended by then.
type living struct {
	Live     map[liveRow]int
	Inuse    map[SiteKey][2]int64
	Holdings map[event.Process]map[int32]int64
	Totals   map[event.Process]ProcessTotals
	Devices  map[event.Process][4]int32 // of the generator's contexts, plus one
}

func livingOf(l *Ledger, ended map[event.Process]bool) living {
	out := living{map[liveRow]int{}, map[SiteKey][2]int64{}, map[event.Process]map[int32]int64{}, map[event.Process]ProcessTotals{}, map[event.Process][4]int32{}}
	for a := range l.Live {
		if !ended[a.Proc] {
			out.Live[liveRow{a.Proc, a.Handle, a.Space, a.Addr, a.Size, a.Time, a.Site.SiteKey}]++
		}
	}
	for s := range l.Sites {
		if !ended[s.Proc] && s.InuseObjects != 0 {
			f := out.Inuse[s.SiteKey]
			out.Inuse[s.SiteKey] = [2]int64{f[0] + s.InuseObjects, f[1] + s.InuseBytes}
		}
	}
	for p := range l.Processes {
		if ended[p.Proc] {
			continue
		}
		var devices [4]int32
		for ctx := range devices {
			devices[ctx] = 1 + l.DeviceOf(p.Proc, uint64(ctx))
		}
		if devices != ([4]int32{}) {
			out.Devices[p.Proc] = devices
		}
		holdings := bytesByDevice(l, p.Proc)
		maps.DeleteFunc(holdings, func(_ int32, bytes int64) bool { return bytes == 0 })
		if len(holdings) > 0 {
			out.Holdings[p.Proc] = holdings
		}
		t := ProcessTotals{
			Inuse: p.Inuse, Managed: p.Managed, Host: p.Host, Imported: p.Imported, Graph: p.Graph,
			LiveObjects: p.LiveObjects, AsyncInuse: p.AsyncInuse,
		}
		if t != (ProcessTotals{}) {
			out.Totals[p.Proc] = t
		}
	}
	return out
}

// orphans says whether a living process has memory nodes or a graph under
// capture that Keyframe's comment excepts.
func (l *Ledger) orphans() bool {
	for p := range l.inOrder {
		if p.exited {
			continue
		}
		for i, g := range p.graphs.all {
			if g.handle == 0 && g.captures > 0 && (g.ran || g.captures > 1) {
				return true
			}
			for _, c := range p.graphs.captures {
				if g.handle != 0 || c.graph != uint32(i) || i == 0 {
					continue
				}
				for space := range p.allocs.live {
					for _, r := range p.allocs.live[space].all {
						if p.sites.all[r.site].Kind == event.KindGraph && r.owner == uint32(i) && (r.time < c.time || p.detached(r.site)) {
							return true
						}
					}
				}
			}
		}
	}
	return false
}

// follow cuts g's sequence after so many events and lets the ledger and one that
// starts at its keyframe go on with the same ones. It says whether there was
// anything to compare.
func follow(t *testing.T, g *generator, before, after int, name string) bool {
	t.Helper()
	l := New(Options{})
	ended := map[event.Process]bool{}
	next := func() *event.Event {
		e := g.next()
		if e.Op == event.OpExit {
			for slot, id := range g.procs {
				if id == e.Proc && g.choose(3) == 0 {
					g.renew(slot)
				}
			}
		}
		return e
	}
	for range before {
		e := next()
		l.Apply(e)
		if e.Op == event.OpExit {
			ended[e.Proc] = true
			if g.choose(4) == 0 {
				l.Forget(e.Proc)
			}
		}
	}
	if l.orphans() {
		return false
	}
	r := rebuilt(l)
	for _, c := range r.Loss() {
		if c.Value != 0 && c.Name != "handles_unmatched" {
			t.Fatalf("%s: the keyframe at %d lost %d as %s", name, before, c.Value, c.Name)
		}
	}
	for i := range after + 1 {
		if i%16 == 0 || i == after {
			if want, got := livingOf(l, ended), livingOf(r, ended); !reflect.DeepEqual(want, got) {
				t.Fatalf("%s: %d events after a cut at %d (-original +rebuilt):\n%s", name, i, before, cmp.Diff(want, got, cmp.AllowUnexported(liveRow{})))
			}
		}
		e := next()
		l.Apply(e)
		r.Apply(e)
	}
	return true
}

// TestKeyframe has what random sequences show too rarely, or not: each row's
// events, cut in two, leave what they leave uncut.
func TestKeyframe(t *testing.T) {
	tests := []struct {
		name          string
		before, after []*event.Event
		want          ProcessTotals // of proc, as rebuilt
	}{
		{"what comes after an end that was before changes nothing",
			[]*event.Event{ev(1, alloc, at(16, 100)), ev(2, event.OpExit)},
			[]*event.Event{ev(3, alloc, at(32, 10)), ev(3, create, vmm, handle(1), size(10))},
			ProcessTotals{Exited: true}},
		{"a process that never used a GPU stays ended too",
			[]*event.Event{ev(2, event.OpExit)}, []*event.Event{ev(3, alloc, at(32, 10))},
			ProcessTotals{Exited: true}},
		{"what comes before an exec that was before changes nothing",
			[]*event.Event{ev(5, event.OpExec), ev(6, alloc, at(16, 100))},
			[]*event.Event{ev(4, alloc, at(32, 10)), ev(4, free, at(16, 0))},
			ProcessTotals{Inuse: 100, LiveObjects: 1}},
		{"a graph is as old as it was, not as its nodes",
			[]*event.Event{ev(5, alloc, at(16, 100), node, handle(1)), ev(2, alloc, at(32, 10), node, handle(1))},
			[]*event.Event{ev(4, destroy, handle(1))},
			ProcessTotals{Graph: 110, LiveObjects: 2}},
		{"or as a capture that adds to it",
			[]*event.Event{ev(2, alloc, at(16, 100), node, handle(1)), ev(5, begin, stream(7), handle(1)), ev(6, free, at(16, 0)), ev(7, alloc, at(16, 1), async, stream(7)), ev(8, free, at(16, 0))},
			[]*event.Event{ev(3, alloc, at(32, 10), node, handle(1)), ev(4, destroy, handle(1))},
			ProcessTotals{}},
		{"a graph from before an exec is as old as the image",
			[]*event.Event{ev(3, alloc, at(32, 10), node, handle(1)), ev(9, alloc, at(16, 100), node, handle(1)), ev(5, event.OpExec)},
			[]*event.Event{ev(7, alloc, at(32, 10), node, handle(1)), ev(8, destroy, handle(1))},
			ProcessTotals{Graph: 100, LiveObjects: 1}},
		{"a graph that ran keeps its nodes",
			[]*event.Event{ev(1, alloc, at(16, 100), node, handle(1)), ev(2, event.OpGraphInstantiate, handle(1))},
			[]*event.Event{ev(3, destroy, handle(1))},
			ProcessTotals{Graph: 100, LiveObjects: 1}},
		{"two captures in one stream of each thread",
			[]*event.Event{ev(1, begin, stream(2), tid(1)), ev(2, alloc, at(16, 1), async, stream(2), tid(1))},
			[]*event.Event{ev(3, alloc, at(32, 10), async, stream(2), tid(1)), ev(4, alloc, at(48, 100), async, stream(2), tid(2)), ev(5, end, stream(2), tid(1), result(901))},
			ProcessTotals{Inuse: 100, LiveObjects: 1, AsyncInuse: 100, AsyncHigh: 100}},
		{"a destroyed pool shrinks with each free",
			[]*event.Event{ev(1, alloc, at(16, 100), async, handle(5)), ev(2, alloc, at(32, 10), async, handle(5)), ev(3, event.OpPoolDestroy, handle(5))},
			[]*event.Event{ev(4, free, at(16, 0))},
			ProcessTotals{Inuse: 10, LiveObjects: 1, AsyncInuse: 10, AsyncHigh: 10}},
		{"a pool that is not the default one keeps its own highest use",
			[]*event.Event{ev(1, event.OpPoolCreate, handle(6)), ev(2, alloc, at(16, 100), async, handle(5)), ev(3, alloc, at(32, 10), async)},
			[]*event.Event{ev(4, free, at(16, 0)), ev(5, free, at(32, 0)), ev(6, event.OpPoolTrim, handle(6)), ev(7, event.OpPoolTrim, handle(5), size(20))},
			ProcessTotals{AsyncHigh: 30}},
		{"memory of no known context outlives one of two, of which one is gone",
			[]*event.Event{ev(1, event.OpContextSeen, ctx(1)), ev(2, event.OpContextSeen, ctx(2)), ev(3, event.OpContextDestroy, ctx(1)), ev(4, alloc, at(16, 100))},
			[]*event.Event{ev(5, event.OpContextDestroy, ctx(2))},
			ProcessTotals{Inuse: 100, LiveObjects: 1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := New(Options{})
			for _, e := range tt.before {
				l.Apply(e)
			}
			r := rebuilt(l)
			for _, e := range tt.after {
				l.Apply(e)
				r.Apply(e)
			}
			got := ProcessTotals{}
			for p := range r.Processes {
				got = p
				got.Proc = event.Process{}
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.IgnoreFields(ProcessTotals{}, "Peak", "Allocated")); diff != "" {
				t.Errorf("totals differ (-want +rebuilt):\n%s", diff)
			}
			ended := map[event.Process]bool{proc: tt.want.Exited}
			if diff := cmp.Diff(livingOf(l, ended), livingOf(r, ended), cmp.AllowUnexported(liveRow{})); diff != "" {
				t.Errorf("what is live differs (-original +rebuilt):\n%s", diff)
			}
		})
	}
}

// TestKeyframeOfForgotten: a process that was forgotten is not known as living.
func TestKeyframeOfForgotten(t *testing.T) {
	l := New(Options{})
	l.Apply(ev(1, alloc, at(16, 100)))
	l.Apply(ev(2, event.OpExit))
	l.Forget(proc)
	r := rebuilt(l)
	r.Apply(ev(3, alloc, at(32, 10)))
	for a := range r.Live {
		t.Errorf("live: %+v", a)
	}
}

// TestKeyframeBeyondBounds: what has no row or no site is in use as before, and
// its end is found.
func TestKeyframeBeyondBounds(t *testing.T) {
	l := New(Options{MaxLive: 6, MaxUnattributed: 100, MaxSites: 3})
	events := []*event.Event{ev(1, event.OpContextCreate, ctx(1), device(2))}
	frees := []*event.Event{ev(9, event.OpContextDestroy, ctx(1))}
	for i := range uint64(8) {
		events = append(events,
			ev(2, alloc, at(16*(i+1), 100), stack(i+1), ctx(1), device(-1)),
			ev(2, alloc, at(1<<20+16*(i+1), 10), stack(i+1), async),
			ev(2, alloc, at(2<<20+16*(i+1), 7), stack(i+1), kind(event.KindHost)),
			ev(2, event.OpOpen, at(3<<20+16*(i+1), 0), imported),
			ev(3, event.OpOpen, at(3<<20+16*(i+1), 0), imported),
			ev(3, create, handle(i+1), vmm, size(1000)), ev(4, mapped, handle(i+1), at(1<<40+4096*i, 4096)), ev(5, release, handle(i+1)))
		frees = append(frees,
			ev(9, free, at(1<<20+16*(i+1), 0)), ev(9, free, at(2<<20+16*(i+1), 0)),
			ev(9, free, at(3<<20+16*(i+1), 0)), ev(9, free, at(3<<20+16*(i+1), 0)),
			ev(9, unmap, at(1<<40+4096*i, 4096)))
	}
	for _, e := range events {
		l.Apply(e)
	}
	figures := func(l *Ledger) (out ProcessTotals) {
		for p := range l.Processes {
			out = ProcessTotals{Inuse: p.Inuse, Host: p.Host, Imported: p.Imported, LiveObjects: p.LiveObjects, AsyncInuse: p.AsyncInuse, UnmatchedFrees: p.UnmatchedFrees}
		}
		return out
	}
	if lossOf(l, "allocations_unattributed") == 0 || lossOf(l, "sites_full") == 0 {
		t.Fatalf("the bounds were never reached: %+v", l.Loss())
	}
	r := rebuilt(l)
	if n := lossOf(r, "allocations_replaced"); n != 0 {
		t.Errorf("%d things were rebuilt twice", n)
	}
	if diff := cmp.Diff(figures(l), figures(r)); diff != "" {
		t.Errorf("totals differ (-original +rebuilt):\n%s", diff)
	}
	compareSums(t, r, proc)
	for _, e := range frees {
		r.Apply(e)
	}
	if diff := cmp.Diff(ProcessTotals{}, figures(r)); diff != "" {
		t.Errorf("totals after all ended differ (-want +rebuilt):\n%s", diff)
	}
}

// TestKeyframeStops: whoever takes a keyframe may take a part of it.
func TestKeyframeStops(t *testing.T) {
	l := New(Options{MaxLive: 20})
	g := newGenerator(randomChooser{rand.New(rand.NewPCG(5, 5))})
	for range 3000 {
		l.Apply(g.next())
	}
	all := 0
	for range l.Keyframe {
		all++
	}
	for n := 1; n <= all; n++ {
		got := 0
		l.Keyframe(func(*event.Event) bool {
			got++
			return got < n
		})
		if got != n {
			t.Fatalf("%d events after it was told to stop at %d of %d", got, n, all)
		}
	}
}

// TestRandomKeyframe cuts random sequences at random points.
func TestRandomKeyframe(t *testing.T) {
	rounds := 2000
	if testing.Short() {
		rounds = 200
	}
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("repeat with -seed=%d", seed)
	compared := 0
	for i := range rounds {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		g := newGenerator(randomChooser{r})
		g.calm = i%4 == 0
		if follow(t, g, r.IntN(1000), 300, fmt.Sprintf("seed %d, round %d", seed, i)) {
			compared++
		}
	}
	t.Logf("%d of %d cuts compared", compared, rounds)
	if compared < rounds*9/10 {
		t.Errorf("%d of %d cuts compared, want nine of ten", compared, rounds)
	}
}

// FuzzKeyframe lets a fuzzer write the sequence and choose the cut.
func FuzzKeyframe(f *testing.F) {
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 2))
		b := make([]byte, 4000)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		f.Add(b, uint16(200))
	}
	f.Fuzz(func(t *testing.T, data []byte, cut uint16) {
		follow(t, newGenerator(&byteChooser{data}), int(cut)%1024, 100, "fuzz")
	})
}
