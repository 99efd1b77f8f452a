package whatif

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/keyed"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
	"github.com/gpumemtrace/gpumemtrace/internal/whatif/allocator"
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
	sizes  []curve         // by tensor of base
	spare  []uint32        // by how many units they may be too large at its number
	sums   []*sum          // by tensor: what its size follows from, nil if it does not
	lone   map[uint32]bool // the tensors that are in no other run
	paired uint64          // bytes of base's tensors that have a partner in every run
	total  uint64          // of all of base's tensors
	runs   []Measured
	// Workspaces is how many bytes of base's tensors are workspaces of sums that not all runs have, which
	// follow from what is summed. Alone is how many are of other tensors that no other run has.
	Workspaces, Alone uint64
	// Curved is how many bytes of base's tensors grow faster than the number, where only
	// two runs are known.
	Curved uint64
}

var errHeld = errors.New("its history begins when tensors are there already, and which of them grow is not known: begin to record before the program makes the first one")

// NewFit pairs the tensors of runs: the k-th that was made at a stack in one with the
// k-th of the same stack in the others.
func NewFit(runs []Measured) (*Fit, error) {
	runs = slices.Clone(runs)
	sorting.Stable(runs, func(a, b Measured) int { return cmp.Compare(a.At, b.At) })
	for i := range runs {
		if i > 0 && runs[i].At == runs[i-1].At {
			return nil, fmt.Errorf("two recordings are of %g: give one of each number", runs[i].At)
		}
		if len(runs[i].Run.Held) > 0 {
			return nil, errHeld
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
		m.Run.blocked()
		m.Run.Check(f.own.Settings)
		m.Run.refine()
	}
	f.pair()
	all := make([]*Run, len(runs))
	for i := range runs {
		all[i] = runs[i].Run
	}
	numbers := numbered(all...)
	f.addSums(learn(runs, numbers), numbers[len(numbers)-1])
	return f, nil
}

// pair finds how the size of each tensor depends on the number.
func (f *Fit) pair() {
	blocks, runs := f.base.blocks(), f.runs[:len(f.runs)-1]
	f.sizes, f.spare, f.lone = make([]curve, len(blocks)), make([]uint32, len(blocks)), map[uint32]bool{}
	partners, others := make([][]int32, len(runs)), make([][]block, len(runs))
	for i := range runs {
		partners[i] = align(f.base, runs[i].Run)
		others[i] = runs[i].Run.blocks()
	}
	for t, b := range blocks {
		size := uint64(b.units) * unit
		f.total += size
		var points []point
		for i := range runs {
			if k := partners[i][t]; k >= 0 {
				points = append(points, point{runs[i].At, others[i][k]})
			}
		}
		ofSum := f.base.stack(uint32(t)).SumWorkspace
		switch {
		case len(points) == len(runs):
			f.paired += size
		case ofSum:
			f.Workspaces += size
		case len(points) == 0:
			f.Alone += size
			f.lone[uint32(t)] = true
		}
		if len(points) == 0 {
			f.sizes[t], f.spare[t] = curve{float64(size)}, b.spare // for want of a better guess
			if ofSum {
				f.sizes[t] = curve{0, float64(size) / f.at} // as its rows do
			}
			continue
		}
		points = append(points, point{f.at, b})
		f.sizes[t] = through(points)
		f.spare[t] = f.sizes[t].spare(points)
		// What would be negative at 0 grows faster than the number does.
		if len(runs) == 1 && f.sizes[t][0] < -float64(2<<20) {
			f.Curved += size
			f.sizes[t] = curve{0, float64(size) / f.at}
		}
	}
}

// An assumption is about what the recordings do not show.
type assumption struct {
	grow bool // what only one recording has grows as the number does, and is not constant
	none bool // sums have no workspaces but those of which a recording shows one
}

// bytes returns the size of a tensor at a number, 0 if it is not made.
func (f *Fit) bytes(tensor uint32, n float64, a assumption) uint64 {
	s := f.sums[tensor]
	switch {
	case s != nil && s.guessed && a.none:
		return 0
	case s != nil:
		return s.workspace(s.input.at(n))
	case a.grow && f.lone[tensor]:
		return uint64(float64(f.sizes[tensor].at(n)) * n / f.at)
	}
	return f.sizes[tensor].at(n)
}

// numbered returns a number for the stack of each site of runs, which is the same for equal stacks.
func numbered(runs ...*Run) [][]int32 {
	numbers := map[string]int32{}
	out := make([][]int32, len(runs))
	for i, x := range runs {
		for j := range x.Sites {
			n, ok := numbers[x.Sites[j].Key]
			if !ok {
				n = int32(len(numbers))
				numbers[x.Sites[j].Key] = n
			}
			out[i] = append(out[i], n)
		}
	}
	return out
}

// maxDifferences bounds the tensors that only one of two runs has, as far as align looks.
const maxDifferences = 4096

// align returns, for each tensor of a, the one of b that was made at the same stack at the
// same point of the sequence, -1 for none: the longest sequence that both have in common,
// by Myers' algorithm (An O(ND) Difference Algorithm, 1986).
func align(a, b *Run) []int32 {
	sequence := func(x *Run, numbers []int32) []int32 {
		out := make([]int32, len(x.Stacks))
		for t, s := range x.Stacks {
			out[t] = numbers[s]
		}
		return out
	}
	numbers := numbered(a, b)
	x, y := sequence(a, numbers[0]), sequence(b, numbers[1])
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
func (f *Fit) scaled(n float64) *allocator.Run { return f.assuming(n, assumption{}) }

// assuming is scaled under an assumption.
func (f *Fit) assuming(n float64, a assumption) *allocator.Run {
	r := &allocator.Run{Requests: slices.Clone(f.base.Requests), Addresses: f.base.Addresses, Reserved: f.base.Reserved, Spare: make([]uint16, len(f.spare))}
	for i := range r.Requests {
		if q := &r.Requests[i]; q.Op == allocator.Make {
			q.Units = uint32(min((f.bytes(q.Tensor, n, a)+unit-1)/unit, 1<<32-1))
			if q.Units == 0 && f.sums[q.Tensor] != nil {
				q.Op = allocator.Free // it is not made at all
				continue
			}
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
	for _, a := range []assumption{{grow: true}, {none: true}, {true, true}} {
		if a.grow && len(f.lone) == 0 || a.none && f.Unseen(n) == 0 {
			continue // as without it
		}
		p := f.assuming(n, a).Play(f.own.Settings, -1).Peak
		low, high = min(low, p), max(high, p)
	}
	return low, high
}

// unmodelled says why the peak of the run at another number may lie outside of what Spread returns, nothing
// if no cause is known.
func (f *Fit) unmodelled() (why []string) {
	uses := func(is func(*Site) bool) bool {
		return slices.ContainsFunc(f.runs, func(m Measured) bool {
			return slices.ContainsFunc(m.Run.Stacks, func(s uint32) bool { return is(&m.Run.Sites[s]) })
		})
	}
	if uses(func(s *Site) bool { return s.CuDNN || s.Workspace }) {
		why = append(why, "fit does not know which algorithms cuDNN chooses at another number")
	}
	if uses(func(s *Site) bool { return s.Recurrent }) {
		why = append(why, "fit does not know all that recurrent layers such as an LSTM ask for at another number")
	}
	if f.Curved > f.total/100 {
		why = append(why, "two recordings do not show how tensors grow that grow faster than the number")
	}
	return why
}

// part returns which part bytes are of those of the highest run's tensors.
func (f *Fit) part(bytes uint64) float64 { return float64(bytes) / float64(max(f.total, 1)) }

// Unseen returns the size of the largest workspace at a number that is predicted for sums of which no
// recording shows one.
func (f *Fit) Unseen(n float64) (most uint64) {
	for _, s := range f.sums {
		if s != nil && s.guessed {
			most = max(most, s.workspace(s.input.at(n)))
		}
	}
	return most
}

// Paired is the part of the highest run's bytes whose tensors are in all runs.
func (f *Fit) Paired() float64 { return f.part(f.paired) }

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

// maxNumber is the highest number for which a run is predicted.
const maxNumber = 1 << 24

// A Largest is the highest whole number that a limit lets run, 0 for none, and maxNumber if no number that
// was tried is too high.
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
	if limit == 0 {
		return Largest{}
	}
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
	for high < maxNumber && fits(float64(high)) {
		low, high = high, high*2
	}
	if high == maxNumber && fits(maxNumber) {
		return maxNumber
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
		g := keyed.At(by, text)
		g.Text = text
		g.Base += uint64(blocks[t].units) * unit
		g.Predicted += f.bytes(t, n, assumption{})
	}
	var out []Growth
	for _, g := range by {
		out = append(out, *g)
	}
	sorting.Stable(out, func(a, b Growth) int {
		return cmp.Or(cmp.Compare(b.Predicted, a.Predicted), cmp.Compare(a.Text, b.Text))
	})
	return out
}
