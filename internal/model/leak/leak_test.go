package leak

import (
	"iter"
	"slices"
	"testing"
)

func TestPatterns(t *testing.T) {
	// K = 5, N = 3, 24 intervals unless said otherwise.
	for name, test := range map[string]struct {
		run       func(p *program, interval int)
		intervals int
		leaks     bool
	}{
		"steady leak":  {func(p *program, _ int) { p.alloc(mib) }, 24, true},
		"just enough":  {func(p *program, _ int) { p.alloc(mib) }, 5, true},
		"one too few":  {func(p *program, _ int) { p.alloc(mib) }, 4, false},
		"constant":     {func(p *program, n int) { once(p, n == 1) }, 24, false},
		"in one burst": {func(p *program, n int) { once(p, n == 20) }, 24, false},
		"sawtooth that returns to its base": {func(p *program, n int) {
			if p.alloc(mib); n%5 == 0 {
				p.free(5)
			}
		}, 24, false},
		"leak of one tooth in each period": {func(p *program, n int) {
			// Every 3 intervals 2 of 3 allocations are given back.
			if p.alloc(mib); n%3 == 0 {
				p.live = p.live[:len(p.live)-2]
			}
		}, 24, true},
		"warm-up, then flat": {func(p *program, n int) { once(p, n <= 12) }, 24, false},
		"stopped for N":      {func(p *program, n int) { once(p, n <= 21) }, 24, false},
		"stopped for N-1":    {func(p *program, n int) { once(p, n <= 22) }, 24, true},
		"every N intervals":  {func(p *program, n int) { once(p, n%3 == 0) }, 24, true},
		"rarer than that":    {func(p *program, n int) { once(p, n%4 == 0) }, 24, false},
		"load that grows, every allocation brief": {func(p *program, n int) {
			p.free(len(p.live))
			for range n {
				p.alloc(mib)
			}
		}, 24, false},
		"the same beside weights loaded before": {func(p *program, n int) {
			if n == 1 {
				p.alloc(1000 * mib)
			}
			p.live = p.live[:1]
			for range n {
				p.alloc(mib)
			}
		}, 24, false},
		"the same after a warm-up of as many intervals": {func(p *program, n int) {
			if n <= 10 {
				p.alloc(mib)
				return
			}
			p.live = p.live[:10]
			for range n - 15 {
				p.alloc(mib)
			}
		}, 24, false},
		"replaced by a larger one": {func(p *program, n int) {
			p.free(1)
			p.alloc(int64(n) * mib)
		}, 24, false},
		"cache of constant size, entries change": {func(p *program, n int) {
			if p.alloc(mib); n > 8 {
				p.free(1)
			}
		}, 24, false},
		"leak under brief allocations of more": {func(p *program, n int) {
			kept := p.live[:0]
			for _, a := range p.live {
				if a.size == mib {
					kept = append(kept, a)
				}
			}
			p.live = kept
			p.alloc(mib)
			if n%3 == 0 {
				p.alloc(3*mib - 1)
			}
		}, 24, true},
		"cache that still fills": {func(p *program, n int) {
			if p.alloc(mib); n > 100 {
				p.free(1)
			}
		}, 24, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := &program{name: "site", run: test.run}
			r := watch(Options{}, newWorld(p), test.intervals, nil)
			if got := len(r.Stacks) == 1; got != test.leaks {
				t.Errorf("leaks: %v, want %v; %d bytes live", got, test.leaks, len(p.live))
			}
			if got, want := r.TooShort(), test.intervals < 5; got != want {
				t.Errorf("too short: %v, want %v", got, want)
			}
		})
	}
}

// With K at most N, the growth itself must be old enough.
func TestOutlive(t *testing.T) {
	o := Options{Intervals: 2, Outlive: 5}
	for begin, want := range map[int]bool{18: true, 19: true, 20: false, 23: false} {
		p := &program{name: "site", run: func(p *program, n int) { once(p, n == 1 || n >= begin) }}
		if got := len(watch(o, newWorld(p), 24, nil).Stacks) == 1; got != want {
			t.Errorf("leak from interval %d of 24 on: %v, want %v", begin, got, want)
		}
	}
	for intervals, want := range map[int]bool{5: true, 6: false} {
		if got := watch(o, newWorld(), intervals, nil).TooShort(); got != want {
			t.Errorf("%d intervals are too short: %v, want %v", intervals, got, want)
		}
	}
}

func once(p *program, now bool) {
	if now {
		p.alloc(mib)
	}
}

func TestMaxSites(t *testing.T) {
	w := newWorld(leaking(1), leaking(2), leaking(3))
	r := watch(Options{MaxSites: 2}, w, 12, nil)
	if got := names(r); !slices.Equal(got, []string{"leak_2", "leak_1"}) || r.Unwatched != 1 {
		t.Errorf("%v leak, %d unwatched; want the first two and 1", got, r.Unwatched)
	}

	// A place that becomes free goes to the third, whose past is not known:
	// what it held is no growth.
	w = newWorld(leaking(1), leaking(2), leaking(3))
	w.programs[0].run = func(p *program, n int) {
		if p.alloc(1); n > 6 {
			p.free(100)
		}
	}
	r = watch(Options{MaxSites: 2}, w, 16, nil)
	i := slices.Index(names(r), "leak_3")
	if i < 0 {
		t.Fatalf("%v leak, want leak_3 among them", names(r))
	}
	if s := r.Stacks[i]; s.Growth != int64(s.Rises)*3 || s.Growth >= s.Sample.InuseBytes {
		t.Errorf("growth of %d in %d rises, of %d held", s.Growth, s.Rises, s.Sample.InuseBytes)
	}
}

func TestSitesThatHoldNothingAreForgotten(t *testing.T) {
	p := leaking(mib)
	w := newWorld(p)
	d := New(Options{})
	w.interval(1, d.opts.Interval)
	d.Observe(w.now, w.held)
	if len(d.sites) != 1 {
		t.Fatalf("%d sites, want 1", len(d.sites))
	}
	p.live = nil
	d.Observe(w.now, w.held)
	if len(d.sites) != 0 {
		t.Errorf("%d sites kept, want 0", len(d.sites))
	}
}

func TestEqualSamplesAreOneStack(t *testing.T) {
	// A ledger has two sites of one key when the device became known late.
	w := newWorld(leaking(mib))
	d := New(Options{})
	for i := range 12 {
		w.interval(i, d.opts.Interval)
		d.Observe(w.now, twice(w.held))
	}
	last := w.snapshot(true)
	last.Samples = append(last.Samples, last.Samples[0])
	for _, a := range last.Live {
		a.Sample = 1
		last.Live = append(last.Live, a)
	}
	r := d.Report(last, twice(w.sites))
	if len(r.Stacks) != 1 || r.Stacks[0].Growth != 24*mib || r.Stacks[0].Sample.InuseObjects != 24 {
		t.Errorf("got %+v, want one stack that gained 24 MiB in 24 objects", r.Stacks)
	}
}

func twice[T any](seq iter.Seq[T]) iter.Seq[T] {
	return func(yield func(T) bool) {
		for range 2 {
			seq(yield)
		}
	}
}
