package gpu

import (
	"math/rand/v2"
	"testing"
)

const mib = 1 << 20

func reading(nvml, tracked, rounding int64, unmatched uint64) Reading {
	return Reading{NVML: ProcessUse{Bytes: nvml, Known: true}, Tracked: tracked, Rounding: rounding, Unmatched: unmatched}
}

func bytesOf(s Statement) [4]int64 {
	var b [4]int64
	for i, l := range s.Lines {
		b[i] = l.Bytes
	}
	return b
}

// TestAccount: lines in the order tracked, rounding, before attach, context.
func TestAccount(t *testing.T) {
	type step struct {
		r        Reading
		want     [4]int64
		grew     int64
		negative bool
	}
	for _, tt := range []struct {
		name  string
		a     Account
		steps []step
	}{
		{"from the start, PyTorch on an H200 (measured)", Account{FromStart: true}, []step{
			{r: reading(639631360, 0, 0, 0), want: [4]int64{0, 0, 0, 639631360}},
			{r: reading(2252341248, 1612709888, 0, 0), want: [4]int64{1612709888, 0, 0, 639631360}},
			{r: reading(2254438400, 1612709888, 0, 0), want: [4]int64{1612709888, 0, 0, 641728512}, grew: 2 * mib},
		}},
		{"from the start, 64 KiB stacks of threads (measured)", Account{FromStart: true}, []step{
			{r: reading(543162368, 0, 0, 0), want: [4]int64{0, 0, 0, 543162368}},
			{r: reading(543162368+17439916032, 0, 0, 0), want: [4]int64{0, 0, 0, 17983078400}, grew: 17439916032},
		}},
		{"late, size of the context known", Account{Context: 600 * mib}, []step{
			{r: reading(1000*mib, 0, 0, 0), want: [4]int64{0, 0, 400 * mib, 600 * mib}},
			{r: reading(1011*mib, 10*mib, mib, 0), want: [4]int64{10 * mib, mib, 400 * mib, 600 * mib}},
			{r: reading(700*mib, 0, 0, 3), want: [4]int64{0, 0, 100 * mib, 600 * mib}, grew: -300 * mib},
			{r: reading(702*mib, 0, 0, 3), want: [4]int64{0, 0, 100 * mib, 602 * mib}, grew: 2 * mib},
			{r: reading(602*mib, 0, 0, 4), want: [4]int64{0, 0, 0, 602 * mib}, grew: -100 * mib},
			{r: reading(600*mib, 0, 0, 9), want: [4]int64{0, 0, 0, 600 * mib}, grew: -2 * mib},
		}},
		{"late, the drop comes after the free", Account{Context: 600 * mib}, []step{
			{r: reading(1000*mib, 0, 0, 0), want: [4]int64{0, 0, 400 * mib, 600 * mib}},
			{r: reading(1000*mib, 0, 0, 1), want: [4]int64{0, 0, 400 * mib, 600 * mib}},
			{r: reading(998*mib, 0, 0, 1), want: [4]int64{0, 0, 398 * mib, 600 * mib}, grew: -2 * mib},
			{r: reading(990*mib, 0, 0, 1), want: [4]int64{0, 0, 398 * mib, 592 * mib}, grew: -8 * mib},
		}},
		{"late, context larger than all there is", Account{Context: 600 * mib}, []step{
			{r: reading(500*mib, 0, 0, 0), want: [4]int64{0, 0, 0, 500 * mib}},
		}},
		{"late, context smaller than expected", Account{Context: 600 * mib}, []step{
			{r: reading(1000*mib, 0, 0, 0), want: [4]int64{0, 0, 400 * mib, 600 * mib}},
			{r: reading(300*mib, 0, 0, 0), want: [4]int64{0, 0, 300 * mib, 0}, grew: -700 * mib},
		}},
		{"late, context not known", Account{}, []step{
			{r: reading(1000*mib, 0, 0, 0), want: [4]int64{0, 0, 1000 * mib, 0}},
			{r: reading(1004*mib, 0, 0, 0), want: [4]int64{0, 0, 1000 * mib, 4 * mib}, grew: 4 * mib},
			{r: reading(998*mib, 0, 0, 0), want: [4]int64{0, 0, 998 * mib, 0}, grew: -6 * mib},
			{r: reading(600*mib, 0, 0, 5), want: [4]int64{0, 0, 600 * mib, 0}, grew: -398 * mib},
		}},
		{"NVML below what was traced", Account{FromStart: true}, []step{
			{r: reading(100*mib, 120*mib, mib, 0), want: [4]int64{120 * mib, mib, 0, -21 * mib}, negative: true},
			{r: reading(150*mib, 120*mib, mib, 0), want: [4]int64{120 * mib, mib, 0, 29 * mib}, grew: 50 * mib},
		}},
		{"late, NVML below what was traced", Account{Context: 600 * mib}, []step{
			{r: reading(0, 7*mib, 0, 0), want: [4]int64{7 * mib, 0, 0, -7 * mib}, negative: true},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for i, st := range tt.steps {
				s := tt.a.Observe(st.r)
				if got := bytesOf(s); got != st.want || s.Grew != st.grew || s.Negative != st.negative {
					t.Errorf("step %d: %v grew %d negative %v, want %v grew %d negative %v",
						i, got, s.Grew, s.Negative, st.want, st.grew, st.negative)
				}
			}
		})
	}
}

func TestAccountUnknown(t *testing.T) {
	a := Account{Context: 600 * mib}
	s := a.Observe(Reading{Tracked: 5 * mib, Unmatched: 3})
	if s.Known || s.Total != 0 || len(s.Lines) != 2 || s.Lines[0].Bytes != 5*mib {
		t.Errorf("%+v", s)
	}
	// The first known reading is the one that is split.
	s = a.Observe(reading(1005*mib, 5*mib, 0, 3))
	if got := bytesOf(s); got != [4]int64{5 * mib, 0, 400 * mib, 600 * mib} {
		t.Errorf("%v", got)
	}
	if !s.Lines[2].Inferred || !s.Lines[3].Inferred || s.Lines[3].Note == "" {
		t.Errorf("the split is not marked: %+v", s.Lines)
	}
	// What was freed while NVML was away shows in the next figure.
	a.Observe(Reading{Tracked: 5 * mib, Unmatched: 4})
	if got := bytesOf(a.Observe(reading(905*mib, 5*mib, 0, 4))); got != [4]int64{5 * mib, 0, 300 * mib, 600 * mib} {
		t.Errorf("%v", got)
	}
}

func TestAccountMarks(t *testing.T) {
	start := Account{FromStart: true}
	s := start.Observe(reading(600*mib, 0, 0, 0))
	if s.Inferred || s.Lines[2].Inferred || s.Lines[3].Inferred || s.Lines[3].Note != "" {
		t.Errorf("from the start: %+v", s)
	}
	r := reading(600*mib, 0, 0, 0)
	r.NVML.Inferred = true
	if s = start.Observe(r); !s.Inferred || !s.Lines[3].Inferred {
		t.Errorf("inferred: %+v", s)
	}
	var late Account
	if s = late.Observe(reading(600*mib, 0, 0, 0)); s.Lines[2].Note == "" || !s.Lines[2].Inferred {
		t.Errorf("late: %+v", s)
	}
}

// TestAccountSum: whatever is read, lines add up to NVML's total, before-attach
// is never negative and never grows, and a negative line is flagged.
func TestAccountSum(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		a := Account{FromStart: rng.IntN(2) == 0, Context: rng.Int64N(3) * 300 * mib}
		last, unmatched := int64(1<<62), uint64(0)
		for range 30 {
			unmatched += rng.Uint64N(2)
			r := reading(rng.Int64N(1000)*mib, rng.Int64N(500)*mib, rng.Int64N(3)*mib, unmatched)
			s := a.Observe(r)
			b := bytesOf(s)
			if b[0]+b[1]+b[2]+b[3] != r.NVML.Bytes {
				t.Fatalf("%v do not add up to %d", b, r.NVML.Bytes)
			}
			if b[2] < 0 || b[2] > last || a.FromStart && b[2] != 0 {
				t.Fatalf("before attach went from %d to %d", last, b[2])
			}
			last = b[2]
			if residual := r.NVML.Bytes - r.Tracked - r.Rounding; s.Negative != (residual < 0) {
				t.Fatalf("residual %d, negative %v: %v", residual, s.Negative, b)
			}
		}
	}
}

// TestRounding has the growth that NVML showed on driver 580, step by step.
func TestRounding(t *testing.T) {
	var r Rounding
	asked := int64(0)
	add := func(size int64) { r.Add(size); asked += size }
	check := func(what string, grown int64) {
		t.Helper()
		if asked+r.Bytes() != grown {
			t.Errorf("%s: %d, NVML %d", what, asked+r.Bytes(), grown)
		}
	}
	add(1)
	check("one byte", 2097152)
	for range 23 {
		add(1)
	}
	check("23 more", 2097152)
	add(3 << 20)
	check("3 MiB", 6291456)
	add(3<<20 + 1)
	check("3 MiB and a byte", 10485760)
	add(1 << 20)
	check("1 MiB", 10485760)
	add(1000000007)
	check("1000000007", 1010827264)
	for range 24 {
		r.Remove(1)
	}
	for _, s := range []int64{3 << 20, 3<<20 + 1, 1 << 20, 1000000007} {
		r.Remove(s)
	}
	if r != (Rounding{}) {
		t.Errorf("%+v after all was removed", r)
	}
}

func BenchmarkObserve(b *testing.B) {
	a := Account{Context: 600 * mib}
	for i := range b.N {
		a.Observe(reading(int64(i)*4096, int64(i), 1, uint64(i)))
	}
}
