package ledger

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// rebuilt returns a new Ledger that is read from l's keyframe.
func rebuilt(t testing.TB, l *Ledger) *Ledger {
	t.Helper()
	out := New(l.opt)
	if !record.ReadFields(written(l), out.Visit) {
		t.Fatal("what was written does not read")
	}
	return out
}

// written returns the data of all parts of l's keyframe.
func written(l *Ledger) (data []byte) {
	record.WriteFields(record.OfDriver, l.Visit, func(r record.Record) { data = append(data, r.(*record.Part).Data...) })
	return data
}

// A shown is all that a Ledger shows.
type shown struct {
	Live    map[liveRow]int
	Sites   []Site
	Totals  []ProcessTotals
	Uses    map[event.Process][]DeviceUse
	Devices map[event.Process][4]int32 // of the generator's contexts
	Loss    []loss.Counter
	Held    Held
}

func allOf(l *Ledger) shown {
	out := shown{Live: map[liveRow]int{}, Uses: map[event.Process][]DeviceUse{}, Devices: map[event.Process][4]int32{}, Loss: l.Loss(), Held: l.HeldByAll()}
	for a := range l.Live {
		out.Live[liveRow{a.Proc, a.Handle, a.Space, a.Addr, a.Size, a.Time, a.Site.SiteKey}]++
	}
	for s := range l.Sites {
		out.Sites = append(out.Sites, Site{
			SiteKey: s.SiteKey, Synthetic: s.Synthetic, Counts: s.Counts, ReportedObjects: s.ReportedObjects, ReportedBytes: s.ReportedBytes,
			PeakBytes: s.PeakBytes, InuseObjects: s.InuseObjects, InuseBytes: s.InuseBytes, last: s.last,
		})
	}
	for p := range l.Processes {
		out.Totals = append(out.Totals, p)
		out.Uses[p.Proc] = slices.Collect(l.UseByDevice(p.Proc))
		var devices [4]int32
		for ctx := range devices {
			devices[ctx] = l.DeviceOf(p.Proc, uint64(ctx))
		}
		out.Devices[p.Proc] = devices
	}
	return out
}

// compareAll compares all that two Ledgers show.
func compareAll(t *testing.T, when string, l, rebuilt *Ledger) {
	t.Helper()
	if want, got := allOf(l), allOf(rebuilt); !reflect.DeepEqual(want, got) {
		t.Fatalf("%s (-original +rebuilt):\n%s", when, cmp.Diff(want, got, cmp.AllowUnexported(liveRow{}, Site{})))
	}
}

// follow cuts g's sequence after so many events and lets the ledger and one that starts at its
// keyframe go on with the same ones.
func follow(t *testing.T, opt Options, g *generator, before, after int, name string) {
	t.Helper()
	l := New(opt)
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
		switch {
		case e.Op == event.OpExit && g.choose(4) == 0:
			l.Forget(e.Proc)
		case g.choose(50) == 0:
			l.MarkReported()
		}
	}
	r := rebuilt(t, l)
	for i := range after + 1 {
		if i%16 == 0 || i == after {
			compareAll(t, fmt.Sprintf("%s: %d events after a cut at %d", name, i, before), l, r)
		}
		e := next()
		l.Apply(e)
		r.Apply(e)
	}
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
			ProcessTotals{Exited: true, Inuse: 100, LiveObjects: 1}},
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
			r := rebuilt(t, l)
			for _, e := range tt.after {
				l.Apply(e)
				r.Apply(e)
			}
			compareAll(t, "at the end", l, r)
			got := ProcessTotals{}
			for p := range r.Processes {
				got = p
				got.Proc = event.Process{}
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.IgnoreFields(ProcessTotals{}, "Peak", "Allocated", "UnmatchedFrees", "AsyncHigh")); diff != "" {
				t.Errorf("totals differ (-want +rebuilt):\n%s", diff)
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
	r := rebuilt(t, l)
	r.Apply(ev(3, alloc, at(32, 10)))
	for a := range r.Live {
		t.Errorf("live: %+v", a)
	}
}

// TestRandomKeyframe cuts random sequences at random points.
func TestRandomKeyframe(t *testing.T) {
	rounds := 500
	if testing.Short() {
		rounds = 200
	}
	seed := randomSeed(t)
	for i := range rounds {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		g := newGenerator(randomChooser{r})
		g.calm = i%4 == 0
		opt := Options{}
		if i%3 == 0 {
			opt = Options{MaxLive: 20, MaxUnattributed: 10, MaxMappings: 5, MaxSites: 8, MaxEnded: 2}
		}
		follow(t, opt, g, r.IntN(1000), 300, fmt.Sprintf("seed %d, round %d", seed, i))
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
		follow(t, Options{}, newGenerator(&byteChooser{data}), int(cut)%1024, 100, "fuzz")
	})
}

// TestHostileKeyframe changes bytes of keyframes: what reads is bounded, and goes on whatever
// comes.
func TestHostileKeyframe(t *testing.T) {
	read := 0
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 3))
		opt := Options{MaxLive: 1000, MaxUnattributed: 100, MaxMappings: 100, MaxSites: 100}
		l, g := New(opt), newGenerator(randomChooser{r})
		for range r.IntN(400) {
			l.Apply(g.next())
		}
		data := written(l)
		for range 1 + r.IntN(4) {
			switch i := r.IntN(len(data)); r.IntN(4) {
			case 0:
				data = slices.Delete(data, i, min(i+1+r.IntN(3), len(data)))
			case 1:
				data = slices.Insert(data, i, byte(r.Uint32()))
			default:
				data[i] = byte(r.Uint32())
			}
			if len(data) == 0 {
				data = []byte{0}
			}
		}
		out := New(opt)
		if !record.ReadFields(data, out.Visit) {
			continue
		}
		read++
		for range 300 {
			out.Apply(g.next())
		}
		allOf(out)
		written(out)
		for id := range out.procs {
			out.Forget(id)
		}
		if out.RowCount() > opt.MaxLive || out.SiteCount() > 0 {
			t.Fatalf("seed %d: %d rows and %d sites are left", seed, out.RowCount(), out.SiteCount())
		}
	}
	if read < 100 {
		t.Errorf("%d keyframes were read", read)
	}
}
