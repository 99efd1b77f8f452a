package leak

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Random programs of which exactly one leaks, whose other sites do everything
// that is none.
func TestOneLeakIsFound(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 5))
		o := Options{Interval: time.Second, Intervals: 2 + rng.IntN(6), Outlive: 1 + rng.IntN(5)}
		w := newWorld()
		for i := range 5 + rng.IntN(15) {
			w.programs = append(w.programs, innocent(rng, fmt.Sprintf("innocent_%d", i), o))
		}
		at := rng.IntN(len(w.programs))
		w.programs = slices.Insert(w.programs, at, guilty(rng, o))
		intervals := (o.Outlive+1)*(o.Intervals+1) + rng.IntN(30)
		if got := names(watch(o, w, intervals, nil)); !slices.Equal(got, []string{"guilty"}) {
			t.Fatalf("seed %d, %+v, %d intervals: %v leak, want only guilty", seed, o, intervals, got)
		}
	}
}

// guilty leaks at least size bytes an interval, under brief allocations of up
// to nearly N times that.
func guilty(rng *rand.Rand, o Options) *program {
	size := int64(2 + rng.IntN(1000))
	var leaked []allocation
	return &program{name: "guilty", run: func(p *program, _ int) {
		p.live = nil
		for range 1 + rng.IntN(3) {
			p.alloc(size)
		}
		leaked = append(leaked, p.live...)
		p.live = slices.Clone(leaked)
		if brief := rng.Int64N(size*int64(o.Outlive)) / 2; brief > 0 {
			p.alloc(brief)
			p.alloc(brief)
		}
	}}
}

func innocent(rng *rand.Rand, name string, o Options) *program {
	size := func() int64 { return 1 + rng.Int64N(5000) }
	period := 1 + rng.IntN(o.Intervals) // a buffer is emptied in time
	first := size()
	runs := []func(p *program, n int){
		func(p *program, n int) { // loaded once
			if n == 1 {
				p.alloc(first)
			}
		},
		func(p *program, n int) { // sawtooth
			if p.alloc(size()); n%period == 0 {
				p.live = nil
			}
		},
		func(p *program, n int) { // sawtooth on a base
			if p.alloc(size()); n%period == 0 {
				p.live = p.live[:1]
			}
		},
		func(p *program, _ int) { // brief, as many as come
			p.live = nil
			for range rng.IntN(10) {
				p.alloc(size())
			}
		},
		func(p *program, n int) { // brief, ever more
			p.live = nil
			p.alloc(first * int64(n))
		},
		func(p *program, n int) { // warm-up
			if n < o.Outlive+2 {
				p.alloc(size())
			}
		},
		func(p *program, n int) { // a full cache with constant entries
			if p.alloc(first); n > o.Outlive+1 {
				p.free(1)
			}
		},
		func(p *program, _ int) { // nothing
		},
	}
	return &program{name: name, run: runs[rng.IntN(len(runs))]}
}
