package leak

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// series feeds a site the bytes held at the end of each interval.
func series(o Options, values ...int64) *site {
	s := new(site)
	for i, v := range values {
		s.now = amount{bytes: v, objects: v}
		s.observe(i+1, o)
	}
	return s
}

func TestSite(t *testing.T) {
	for name, test := range map[string]struct {
		values  []int64
		rises   int
		start   int
		base    int64
		growing bool
	}{
		"steady":                      {[]int64{10, 20, 30, 40, 50}, 5, 0, 0, true},
		"one interval short":          {[]int64{10, 20, 30, 40}, 4, 0, 0, false},
		"longer than the marks":       {[]int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 12, 0, 0, true},
		"flat":                        {[]int64{10, 10, 10, 10, 10, 10}, 1, 0, 0, false},
		"flat less than N at the end": {[]int64{1, 2, 3, 4, 5, 5, 5}, 5, 0, 0, true},
		"flat for N at the end":       {[]int64{1, 2, 3, 4, 5, 5, 5, 5}, 5, 0, 0, false},
		"pauses shorter than N":       {[]int64{1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5}, 5, 0, 0, true},
		"a pause of N starts anew":    {[]int64{1, 2, 3, 3, 3, 3, 4, 5}, 2, 6, 3, false},
		"growth after a warm-up":      {[]int64{90, 99, 99, 99, 99, 100, 101, 102, 103, 104}, 5, 5, 99, true},
		"back to the base":            {[]int64{1, 2, 3, 4, 5, 6, 0, 1, 2}, 2, 7, 0, false},
		"a spike is taken back":       {[]int64{10, 20, 90, 30, 40, 50}, 5, 0, 0, true},
		"a spike is no growth":        {[]int64{10, 20, 90, 20, 30, 30}, 3, 0, 0, false},
		"a dip hides what it reaches": {[]int64{10, 20, 30, 15, 40, 50}, 4, 0, 0, false},
		"a slow decline is no growth": {[]int64{90, 80, 70, 60, 50, 51}, 1, 5, 50, false},
		"below the marks kept": {
			[]int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 2, 12, 13}, 2, 12, 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{}.withDefaults()
			s := series(o, test.values...)
			growing := s.growing(len(test.values), o)
			if s.rises() != test.rises || s.start != test.start || s.base.bytes != test.base || growing != test.growing {
				t.Errorf("%v: %d rises from %d after interval %d, growing %v; want %d from %d after %d, %v",
					test.values, s.rises(), s.base.bytes, s.start, growing, test.rises, test.base, test.start, test.growing)
			}
			if got, want := s.top().bytes, test.values[len(test.values)-1]; got != want {
				t.Errorf("the last mark is %d, want what is held: %d", got, want)
			}
		})
	}
}

// reference applies the package's definition word for word.
func reference(o Options, values []int64) (rises, start int, base int64) {
	held := append([]int64{0}, values...)
	low := func(i int) int64 { return slices.Min(held[i:]) }
	last := len(values)
	for i := len(values); i > 0 && last-i <= o.Outlive; i-- {
		if low(i) > low(i-1) {
			// Before the first rise met, the pause may be N-1 at most.
			if rises == 0 && last-i == o.Outlive {
				break
			}
			rises, start, base, last = rises+1, i-1, low(i-1), i
		}
	}
	return rises, start, base
}

func TestSiteAgainstDefinition(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		o := Options{Intervals: 1 + rng.IntN(5), Outlive: 1 + rng.IntN(4)}
		values := make([]int64, 1+rng.IntN(40))
		slope, noise := rng.IntN(4), 1+rng.IntN(10)
		for i := range values {
			values[i] = int64(1 + i*slope + rng.IntN(noise))
			if rng.IntN(20) == 0 { // back to what was held at some time before
				values[i] = values[rng.IntN(i+1)]
			}
		}
		rises, start, base := reference(o, values)
		want := rises >= o.Intervals

		s := series(o, values...)
		if got := s.growing(len(values), o); got != want {
			t.Fatalf("%+v %v: growing %v, want %v (%d rises from %d)", o, values, got, want, rises, start)
		}
		if want && (s.rises() != rises || s.start != start || s.base.bytes != base) {
			t.Fatalf("%+v %v: %d rises from %d at %d, want %d from %d at %d",
				o, values, s.rises(), s.base.bytes, s.start, rises, base, start)
		}
		if len(s.marks) > o.Intervals+o.Outlive {
			t.Fatalf("%+v: %d marks kept", o, len(s.marks))
		}
	}
}

// The bound that the package's comment proves: less than N*L of noise over a
// leak of L an interval is found after (N+1)*K intervals, whatever the noise.
func TestSiteUnderNoise(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 20_000 {
		o := Options{Intervals: 1 + rng.IntN(6), Outlive: 1 + rng.IntN(6)}
		slope := int64(1 + rng.IntN(50))
		noise := slope * int64(o.Outlive) // exclusive
		values := make([]int64, (o.Outlive+1)*o.Intervals+rng.IntN(20))
		for i := range values {
			extra := rng.Int64N(noise)
			if rng.IntN(2) == 0 { // extremes are the hard case
				extra = rng.Int64N(2) * (noise - 1)
			}
			values[i] = int64(i+1)*slope + extra
		}
		if s := series(o, values...); !s.growing(len(values), o) {
			t.Fatalf("%+v: a leak of %d under noise of %d is missed in %v", o, slope, noise, values)
		}
	}
}

func TestMedian(t *testing.T) {
	o := Options{}.withDefaults()
	if got := series(o, 10, 20, 1000, 1010, 1021).median(); got != 10 {
		t.Errorf("median rise is %d, want 10", got)
	}
}
