package leak

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

func TestReportFigures(t *testing.T) {
	p := leaking(mib)
	p.run = func(p *program, n int) {
		switch {
		case n == 1:
			p.alloc(100 * mib)
		case n > 10: // flat for 9 intervals first
			p.alloc(mib)
			p.alloc(3 * mib)
		}
	}
	r := watch(Options{}, newWorld(p), 20, nil)
	if len(r.Stacks) != 1 {
		t.Fatalf("%d stacks leak, want 1", len(r.Stacks))
	}
	got := r.Stacks[0]
	got.Site, got.Sample = ledger.SiteKey{}, snapshot.Sample{Values: got.Sample.Values}
	// The report is half an interval after the last one, so that ages are
	// whole intervals.
	ten := 10 * time.Second
	want := Stack{
		Sample: snapshot.Sample{Values: snapshot.Values{InuseBytes: 140 * mib, InuseObjects: 21}},
		Growth: 40 * mib, GrowthObjects: 20, Rises: 10, Span: 10, MedianRise: 4 * mib,
		OldBytes: 132 * mib, OldObjects: 17,
		Ages: []Age{
			{0, ten, 0, 0},
			{ten, 2 * ten, 4 * mib, 2},
			{2 * ten, 4 * ten, 8 * mib, 4},
			{4 * ten, 8 * ten, 16 * mib, 8},
			{8 * ten, 16 * ten, 12 * mib, 6},
			{16 * ten, 32 * ten, 100 * mib, 1},
		},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestLater(t *testing.T) {
	kept, freed, gone := ledger.SiteKey{Stack: 1}, ledger.SiteKey{Stack: 2}, ledger.SiteKey{Stack: 3}
	r := &Report{}
	for _, k := range []ledger.SiteKey{kept, freed, gone} {
		r.Stacks = append(r.Stacks, Stack{Site: k, Sample: snapshot.Sample{Values: snapshot.Values{InuseBytes: 100}}})
	}
	later := &snapshot.Snapshot{Samples: []snapshot.Sample{{Values: snapshot.Values{InuseBytes: 30}}, {Values: snapshot.Values{InuseBytes: 49}}, {Values: snapshot.Values{InuseBytes: 20}}}}
	r.Later(later, slices.Values([]ledger.SiteKey{kept, freed, kept}))
	if r.Stacks[0].Freed || !r.Stacks[1].Freed || !r.Stacks[2].Freed {
		t.Errorf("%+v", r.Stacks)
	}
}

func TestGivenBack(t *testing.T) {
	for name, test := range map[string]struct {
		free      int
		leaks     bool
		givenBack int
	}{
		"nothing":   {0, true, 0},
		"a part":    {2, true, 0},
		"nearly":    {8, false, 1},
		"all of it": {12, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := leaking(mib)
			// What is freed last is the youngest: marks go with it.
			r := watch(Options{}, newWorld(p), 12, func() { p.live = p.live[:len(p.live)-test.free] })
			if got := len(r.Stacks) == 1; got != test.leaks || r.GivenBack != test.givenBack {
				t.Errorf("leaks %v, given back %d; want %v, %d", got, r.GivenBack, test.leaks, test.givenBack)
			}
			if test.leaks && r.Stacks[0].Growth != int64(12-test.free)*mib {
				t.Errorf("growth is %d, want %d MiB", r.Stacks[0].Growth, 12-test.free)
			}
		})
	}
	t.Run("its process is forgotten", func(t *testing.T) {
		w := newWorld(leaking(mib))
		r := watch(Options{}, w, 12, func() { w.programs = nil })
		if len(r.Stacks) != 0 || r.GivenBack != 1 {
			t.Errorf("%d leak, %d given back, want 0 and 1", len(r.Stacks), r.GivenBack)
		}
	})
}

func TestGrowthAfterTheLastIntervalIsNotCounted(t *testing.T) {
	p := leaking(mib)
	r := watch(Options{}, newWorld(p), 12, func() { p.alloc(100 * mib) })
	if len(r.Stacks) != 1 || r.Stacks[0].Growth != 12*mib {
		t.Errorf("got %+v, want 12 MiB of growth", r.Stacks)
	}
}

func TestReportLeavesTheDetectorAlone(t *testing.T) {
	p := leaking(mib)
	w := newWorld(p)
	d := New(Options{})
	for i := range 12 {
		w.interval(i, d.opts.Interval)
		d.Observe(w.now, w.held)
	}
	kept := p.live[:11]
	p.live = kept
	first := d.Report(w.snapshot(true), w.sites)
	p.live = append(slices.Clone(kept[:10]), allocation{kib, p.now}) // lowers the next mark
	d.Report(w.snapshot(true), w.sites)
	p.live = kept
	if diff := cmp.Diff(first, d.Report(w.snapshot(true), w.sites)); diff != "" {
		t.Errorf("the third report differs from the first (-first +third):\n%s", diff)
	}
}

func TestAgeless(t *testing.T) {
	w := newWorld(leaking(mib))
	w.noLive = true
	if r := watch(Options{}, w, 12, nil); len(r.Stacks) != 0 || r.Ageless != 1 {
		t.Errorf("%d leak, %d ageless, want 0 and 1", len(r.Stacks), r.Ageless)
	}
}

// What took the place of a brief allocation after the last interval is not of
// an interval.
func TestAllocationsAfterTheLastIntervalAreNoEvidence(t *testing.T) {
	p := leaking(mib)
	r := watch(Options{}, newWorld(p), 5, func() {
		p.live = p.live[:4]
		p.now = p.now.Add(6 * time.Second)
		p.alloc(mib)
	})
	if len(r.Stacks) != 0 {
		t.Error("four intervals whose allocations are held pass for five")
	}
}

func TestAges(t *testing.T) {
	for _, test := range []struct {
		age      time.Duration
		from, to time.Duration
	}{
		{0, 0, 10}, {9, 0, 10}, {10, 10, 20}, {19, 10, 20}, {20, 20, 40}, {39, 20, 40}, {40, 40, 80}, {5000, 2560, 5120},
	} {
		var s Stack
		s.age(test.age, 7, 10)
		if got, want := s.Ages[len(s.Ages)-1], (Age{test.from, test.to, 7, 1}); got != want {
			t.Errorf("age %d is counted in %v, want %v", test.age, got, want)
		}
	}
}

// Rows that no ledger gives do no harm.
func TestStrangeRows(t *testing.T) {
	w := newWorld(leaking(mib))
	d := New(Options{})
	for i := range 12 {
		w.interval(i, d.opts.Interval)
		d.Observe(w.now, w.held)
	}
	s := w.snapshot(true)
	s.Live = append(s.Live,
		snapshot.Allocation{Sample: -1}, snapshot.Allocation{Sample: 1},
		snapshot.Allocation{Size: 1}, // long before the trace
		snapshot.Allocation{Size: 1, Time: w.now.Add(1000 * time.Hour)})
	r := d.Report(s, w.sites)
	if len(r.Stacks) != 1 {
		t.Fatalf("%d stacks leak, want 1", len(r.Stacks))
	}
	ages := r.Stacks[0].Ages
	if oldest := ages[len(ages)-1]; oldest.From > s.Meta.Duration || ages[0].Objects != 2 {
		t.Errorf("ages of a trace of %v are %v", s.Meta.Duration, ages)
	}
}

// Segments are whole where PyTorch has memory, and no sample is a tensor or cached.
func TestWholeSegments(t *testing.T) {
	kinds := func(labels ...snapshot.Labels) *snapshot.Snapshot {
		s := &snapshot.Snapshot{}
		for _, l := range labels {
			s.Samples = append(s.Samples, snapshot.Sample{Labels: l})
		}
		return s
	}
	segment, other := snapshot.Labels{Kind: "device", Owner: "pytorch"}, snapshot.Labels{Kind: "device", Owner: "jax"}
	tensor, cached := snapshot.Labels{Kind: "tensor", Owner: "pytorch"}, snapshot.Labels{Kind: "cached", Owner: "pytorch"}
	for _, test := range []struct {
		samples *snapshot.Snapshot
		want    bool
	}{
		{kinds(), false}, {kinds(other), false}, {kinds(other, segment), true},
		{kinds(segment, tensor), false}, {kinds(cached, segment), false},
	} {
		if got := wholeSegments(test.samples); got != test.want {
			t.Errorf("%+v: %v, want %v", test.samples.Samples, got, test.want)
		}
	}
}
