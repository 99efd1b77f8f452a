package account

import (
	"math/rand/v2"
	"testing"
)

const mib = 1 << 20

func reading(nvml, tracked, rounding, unmatched int64) moment {
	return moment{total: nvml, known: true, tracked: tracked, rounding: rounding, unmatched: unmatched}
}

func bytesOf(s balance) [4]int64 {
	var b [4]int64
	for i, l := range s.lines {
		b[i] = l.Bytes
	}
	return b
}

// TestAccount: lines in the order tracked, rounding, before attach, context.
func TestAccount(t *testing.T) {
	type step struct {
		r    moment
		want [4]int64
		grew int64
	}
	for _, tt := range []struct {
		name  string
		a     account
		steps []step
	}{
		{"from the start, PyTorch on an H200 (measured)", account{fromStart: true}, []step{
			{r: reading(639631360, 0, 0, 0), want: [4]int64{0, 0, 0, 639631360}},
			{r: reading(2252341248, 1612709888, 0, 0), want: [4]int64{1612709888, 0, 0, 639631360}},
			{r: reading(2254438400, 1612709888, 0, 0), want: [4]int64{1612709888, 0, 0, 641728512}, grew: 2 * mib},
		}},
		{"from the start, 64 KiB stacks of threads (measured)", account{fromStart: true}, []step{
			{r: reading(543162368, 0, 0, 0), want: [4]int64{0, 0, 0, 543162368}},
			{r: reading(543162368+17439916032, 0, 0, 0), want: [4]int64{0, 0, 0, 17983078400}, grew: 17439916032},
		}},
		{"late, the drop comes after the free", account{}, []step{
			{r: reading(400*mib, 0, 0, 0), want: [4]int64{0, 0, 400 * mib, 0}},
			{r: reading(1000*mib, 0, 0, 0), want: [4]int64{0, 0, 400 * mib, 600 * mib}, grew: 600 * mib},
			{r: reading(1000*mib, 0, 0, 1), want: [4]int64{0, 0, 400 * mib, 600 * mib}},
			{r: reading(998*mib, 0, 0, 1), want: [4]int64{0, 0, 398 * mib, 600 * mib}, grew: -2 * mib},
			{r: reading(990*mib, 0, 0, 1), want: [4]int64{0, 0, 398 * mib, 592 * mib}, grew: -8 * mib},
			{r: reading(300*mib, 0, 0, 1), want: [4]int64{0, 0, 300 * mib, 0}, grew: -690 * mib},
		}},
		{"late, context not known", account{}, []step{
			{r: reading(1000*mib, 0, 0, 0), want: [4]int64{0, 0, 1000 * mib, 0}},
			{r: reading(1004*mib, 0, 0, 0), want: [4]int64{0, 0, 1000 * mib, 4 * mib}, grew: 4 * mib},
			{r: reading(998*mib, 0, 0, 0), want: [4]int64{0, 0, 998 * mib, 0}, grew: -6 * mib},
			{r: reading(600*mib, 0, 0, 5), want: [4]int64{0, 0, 600 * mib, 0}, grew: -398 * mib},
		}},
		{"NVML below what was traced", account{fromStart: true}, []step{
			{r: reading(100*mib, 120*mib, mib, 0), want: [4]int64{120 * mib, mib, 0, -21 * mib}},
			{r: reading(150*mib, 120*mib, mib, 0), want: [4]int64{120 * mib, mib, 0, 29 * mib}, grew: 50 * mib},
		}},
		{"late, NVML below what was traced", account{}, []step{
			{r: reading(0, 7*mib, 0, 0), want: [4]int64{7 * mib, 0, 0, -7 * mib}},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for i, st := range tt.steps {
				s := tt.a.observe(st.r)
				if got := bytesOf(s); got != st.want || s.grew != st.grew {
					t.Errorf("step %d: %v grew %d, want %v grew %d", i, got, s.grew, st.want, st.grew)
				}
			}
		})
	}
}

func TestAccountUnknown(t *testing.T) {
	var a account
	s := a.observe(moment{tracked: 5 * mib, unmatched: 3})
	if s.known || s.total != 0 || len(s.lines) != 2 || s.lines[0].Bytes != 5*mib {
		t.Errorf("%+v", s)
	}
	// The first known reading is the one that is split.
	s = a.observe(reading(405*mib, 5*mib, 0, 3))
	if got := bytesOf(s); got != [4]int64{5 * mib, 0, 400 * mib, 0} {
		t.Errorf("%v", got)
	}
	// What was freed while NVML was away shows in the next figure.
	a.observe(moment{tracked: 5 * mib, unmatched: 4})
	if got := bytesOf(a.observe(reading(305*mib, 5*mib, 0, 4))); got != [4]int64{5 * mib, 0, 300 * mib, 0} {
		t.Errorf("%v", got)
	}
}

func TestAccountMarks(t *testing.T) {
	start := account{fromStart: true}
	s := start.observe(reading(600*mib, 0, 0, 0))
	if s.inferred || s.lines[2].Inferred || s.lines[3].Inferred || s.lines[3].Note != "" {
		t.Errorf("from the start: %+v", s)
	}
	r := reading(600*mib, 0, 0, 0)
	r.inferred = true
	if s = start.observe(r); !s.inferred || !s.lines[3].Inferred {
		t.Errorf("inferred: %+v", s)
	}
	var late account
	if s = late.observe(reading(600*mib, 0, 0, 0)); s.lines[2].Note == "" || !s.lines[2].Inferred {
		t.Errorf("late: %+v", s)
	}
}

// TestAccountSum: whatever is read, lines add up to NVML's total, before-attach
// is never negative and never grows.
func TestAccountSum(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		a := account{fromStart: rng.IntN(2) == 0}
		last, unmatched := int64(1<<62), int64(0)
		for range 30 {
			unmatched += rng.Int64N(2)
			r := reading(rng.Int64N(1000)*mib, rng.Int64N(500)*mib, rng.Int64N(3)*mib, unmatched)
			s := a.observe(r)
			b := bytesOf(s)
			if b[0]+b[1]+b[2]+b[3] != r.total {
				t.Fatalf("%v do not add up to %d", b, r.total)
			}
			if b[2] < 0 || b[2] > last || a.fromStart && b[2] != 0 {
				t.Fatalf("before attach went from %d to %d", last, b[2])
			}
			last = b[2]
		}
	}
}

func BenchmarkObserve(b *testing.B) {
	var a account
	for i := range b.N {
		a.observe(reading(int64(i)*4096, int64(i), 1, int64(i)))
	}
}
