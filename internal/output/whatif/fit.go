package whatif

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/allocator"
)

// A Measured run is one of several that differ in one number, such as the batch size.
type Measured struct {
	At  float64 // the number
	Run *Run
}

// A Fit says how the size of each tensor depends on the number: c0 + c1 n + c2 n².
type Fit struct {
	base   *Run // the run at the highest number
	at     float64
	own    Setting
	sizes  []curve  // by tensor of base
	spare  []uint32 // by how many units they may be too large at its number
	paired uint64   // bytes of base's tensors that have a partner in every run
	bytes  uint64   // of all of base's tensors
	runs   []Measured
	// Curved is how many bytes of base's tensors grow faster than the number, where only
	// two runs are known.
	Curved uint64
}

// NewFit pairs the tensors of runs: the k-th that was made at a stack in one with the
// k-th of the same stack in the others.
func NewFit(runs []Measured) (*Fit, error) {
	runs = slices.Clone(runs)
	slices.SortFunc(runs, func(a, b Measured) int { return cmp.Compare(a.At, b.At) })
	for i := range runs {
		if i > 0 && runs[i].At == runs[i-1].At {
			return nil, fmt.Errorf("two recordings are of %g: give one of each number", runs[i].At)
		}
		if runs[i].Run.Partial != "" {
			return nil, errors.New(runs[i].Run.Partial)
		}
	}
	base := runs[len(runs)-1]
	f := &Fit{base: base.Run, at: base.At, runs: runs}
	p := Predict(base.Run, Options{})
	if p.Reason != "" {
		return nil, errors.New(p.Reason)
	}
	f.own = p.own
	for _, m := range runs[:len(runs)-1] {
		m.Run.Check(f.own.Settings)
		m.Run.refine()
	}
	blocks := f.base.blocks()
	f.sizes, f.spare = make([]curve, len(blocks)), make([]uint32, len(blocks))
	partners := make([][]int32, len(runs)-1)
	others := make([][]block, len(runs)-1)
	for i := range partners {
		partners[i] = align(f.base, runs[i].Run)
		others[i] = runs[i].Run.blocks()
	}
	for t, b := range blocks {
		size := uint64(b.units) * unit
		f.bytes += size
		var points []point
		for i := range others {
			if k := partners[i][t]; k >= 0 {
				points = append(points, point{runs[i].At, others[i][k]})
			}
		}
		if len(points) < len(others) {
			f.sizes[t] = curve{float64(size)} // constant, for want of a better guess
			f.spare[t] = b.spare
			continue
		}
		f.paired += size
		points = append(points, point{base.At, b})
		f.sizes[t] = through(points)
		f.spare[t] = f.sizes[t].spare(points)
		// What would be negative at 0 grows faster than the number does.
		if len(runs) == 2 && f.sizes[t][0] < -float64(2<<20) {
			f.Curved += size
			f.sizes[t] = curve{0, float64(size) / f.at}
		}
	}
	return f, nil
}

// maxDifferences bounds the tensors that only one of two runs has, as far as align looks.
const maxDifferences = 4096

// align returns, for each tensor of a, the one of b that was made at the same stack at the
// same point of the sequence, -1 for none: the longest sequence that both have in common,
// by Myers' algorithm (An O(ND) Difference Algorithm, 1986).
func align(a, b *Run) []int32 {
	numbers := map[string]int32{}
	sequence := func(x *Run) []int32 {
		sites := make([]int32, len(x.Sites))
		for i := range x.Sites {
			n, ok := numbers[x.Sites[i].Key]
			if !ok {
				n = int32(len(numbers))
				numbers[x.Sites[i].Key] = n
			}
			sites[i] = n
		}
		out := make([]int32, len(x.Stacks))
		for t, s := range x.Stacks {
			out[t] = sites[s]
		}
		return out
	}
	x, y := sequence(a), sequence(b)
	out := make([]int32, len(x))
	for i := range out {
		out[i] = -1
	}
	reach := make([]int32, 2*maxDifferences+3) // by diagonal: how far x is used
	middle := maxDifferences + 1
	var trail [][]int32
	for d := range maxDifferences {
		trail = append(trail, slices.Clone(reach[middle-d:middle+d+1]))
		for k := -d; k <= d; k += 2 {
			i := reach[middle+k-1] + 1
			if k == -d || k != d && reach[middle+k-1] < reach[middle+k+1] {
				i = reach[middle+k+1]
			}
			for int(i) < len(x) && int(i)-k < len(y) && x[i] == y[int(i)-k] {
				i++
			}
			reach[middle+k] = i
			if int(i) >= len(x) && int(i)-k >= len(y) {
				trace(out, trail, k)
				return out
			}
		}
	}
	return out
}

// trace goes back through what align reached and pairs what lies on the way.
func trace(out []int32, trail [][]int32, k int) {
	i, j := len(out), len(out)-k
	for d, reached := range slices.Backward(trail) {
		at := func(k int) int32 {
			if k < -d || k > d {
				return -1
			}
			return reached[k+d]
		}
		before := k - 1
		if k == -d || k != d && at(k-1) < at(k+1) {
			before = k + 1
		}
		x := 0
		if d > 0 {
			x = int(at(before))
		}
		y := x - before
		if d == 0 {
			x, y = 0, 0
		}
		for i > x && j > y {
			i--
			j--
			out[i] = int32(j)
		}
		i, j, k = x, y, before
	}
}

// scaled returns the run as it would be at another number.
func (f *Fit) scaled(n float64) *allocator.Run {
	r := &allocator.Run{Requests: slices.Clone(f.base.Requests), Addresses: f.base.Addresses, Reserved: f.base.Reserved, Spare: make([]uint16, len(f.spare))}
	for i := range r.Requests {
		if q := &r.Requests[i]; q.Op == allocator.Make {
			q.Units = uint32(min((f.sizes[q.Tensor].at(n)+unit-1)/unit, 1<<32-1))
			spare := float64(f.spare[q.Tensor])
			if f.sizes[q.Tensor][1] != 0 {
				spare *= n / f.at
			}
			r.Spare[q.Tensor] = uint16(min(spare, float64(q.Units-min(q.Units, 1)), 1<<16-1))
		}
	}
	return r
}

// At predicts the run at another number.
func (f *Fit) At(n float64) allocator.Result {
	return f.scaled(n).Play(f.own.Settings, -1)
}

// around are by what the number is multiplied to see whether a little more or less changes much: which
// block serves a request depends on all sizes before.
var around = []float64{31. / 32, 63. / 64, 65. / 64, 33. / 32}

// Spread returns between which peaks the run at another number may go, of which At returned one.
func (f *Fit) Spread(n float64, peak uint64) (low, high uint64) {
	low, high = f.scaled(n).Spread(f.own.Settings, peak)
	for _, k := range around {
		p := uint64(float64(f.At(n*k).Peak) / k)
		low, high = min(low, p), max(high, p)
	}
	return low, high
}

// Paired is the part of the highest run's bytes whose tensors are in all runs.
func (f *Fit) Paired() float64 {
	if f.bytes == 0 {
		return 0
	}
	return float64(f.paired) / float64(f.bytes)
}

// Check predicts the highest run from the others, where there are at least three, and
// returns by which part the peak is wrong.
func (f *Fit) Check() (wrong float64, ok bool) {
	if len(f.runs) < 3 {
		return 0, false
	}
	g, err := NewFit(f.runs[:len(f.runs)-1])
	if err != nil {
		return 0, false
	}
	real := float64(f.base.peak())
	return (float64(g.At(f.at).Peak) - real) / real, true
}

// A Largest is the highest whole number that a limit lets run, 0 for none.
type Largest struct {
	Limit uint64 `json:"limit_bytes"` // of what PyTorch reserves
	// Kept is the highest one at which PyTorch reserves no more than the limit.
	Kept int `json:"largest"`
	// Emptying is the highest one that does not fail: PyTorch gives back what it has cached
	// where the limit is in the way.
	Emptying int `json:"largest_emptying"`
}

// largest returns what a limit lets run, which the program set itself (own) or the GPU has.
func (f *Fit) largest(limit uint64, own bool) Largest {
	return Largest{
		limit,
		highest(func(n float64) bool { return f.At(n).Peak <= limit }),
		highest(func(n float64) bool { return f.survives(n, limit, own) }),
	}
}

// survives reports whether the run at a number does not fail under a limit.
func (f *Fit) survives(n float64, limit uint64, own bool) bool {
	s := f.own.Settings
	if own {
		s.Fraction = limit
	} else {
		s.Limit = limit
	}
	return f.scaled(n).Play(s, -1).Failed < 0
}

// highest returns the highest whole number that fits, 0 for none, where all lower ones do.
func highest(fits func(n float64) bool) int {
	if !fits(1) {
		return 0
	}
	low, high := 1, 2
	for high < 1<<24 && fits(float64(high)) {
		low, high = high, high*2
	}
	for high-low > 1 {
		if middle := (low + high) / 2; fits(float64(middle)) {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}

// A Growth is what tensors of one stack hold at the peak at another number.
type Growth struct {
	Text      string
	Base      uint64 // the same tensors in the highest run
	Predicted uint64 // at the number asked for
}

// Growths returns what tensors hold at the peak at another number, by stack, the largest
// first.
func (f *Fit) Growths(n float64) []Growth {
	at := f.At(n).PeakAt
	live := map[uint32]bool{}
	for i := range f.base.Requests[:at+1] {
		switch q := &f.base.Requests[i]; q.Op {
		case allocator.Make:
			live[q.Tensor] = true
		case allocator.Free:
			delete(live, q.Tensor)
		}
	}
	blocks := f.base.blocks()
	by := map[string]*Growth{}
	for t := range live {
		text := f.base.Sites[f.base.Stacks[t]].Text
		g := by[text]
		if g == nil {
			g = &Growth{Text: text}
			by[text] = g
		}
		g.Base += uint64(blocks[t].units) * unit
		g.Predicted += f.sizes[t].at(n)
	}
	var out []Growth
	for _, g := range by {
		out = append(out, *g)
	}
	slices.SortFunc(out, func(a, b Growth) int {
		return cmp.Or(cmp.Compare(b.Predicted, a.Predicted), cmp.Compare(a.Text, b.Text))
	})
	return out
}
