package whatif

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/model/allocator"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
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
	sizes  []curve // by tensor of base
	paired uint64  // bytes of base's tensors that have a partner in every run
	bytes  uint64  // of all of base's tensors
	runs   []Measured
	// Curved is how many bytes of base's tensors grow faster than the number, where only
	// two runs are known.
	Curved uint64
}

// A curve has the coefficients of a size in bytes.
type curve [3]float64

func (c curve) at(n float64) uint64 {
	return uint64(max(0, c[0]+c[1]*n+c[2]*n*n))
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
	sizes := f.base.sizes()
	f.sizes = make([]curve, len(sizes))
	partners := make([][]int32, len(runs)-1)
	others := make([][]uint32, len(runs)-1)
	for i := range partners {
		partners[i] = align(f.base, runs[i].Run)
		others[i] = runs[i].Run.sizes()
	}
	for t := range sizes {
		size := uint64(sizes[t]) * unit
		f.bytes += size
		points := []float64{}
		for i := range others {
			if k := partners[i][t]; k >= 0 {
				points = append(points, float64(others[i][k])*unit)
			}
		}
		if len(points) < len(others) {
			f.sizes[t] = curve{float64(size)} // constant, for want of a better guess
			continue
		}
		f.paired += size
		f.sizes[t] = f.curve(append(points, float64(size)))
		// What would be negative at 0 grows faster than the number does.
		if len(runs) == 2 && f.sizes[t][0] < -float64(2<<20) {
			f.Curved += size
			f.sizes[t] = curve{0, float64(size) / f.at}
		}
	}
	return f, nil
}

// sizes returns the size of each tensor in units.
func (x *Run) sizes() []uint32 {
	out := make([]uint32, len(x.Addresses))
	for i := range x.Requests {
		if q := &x.Requests[i]; q.Op == allocator.Make {
			out[q.Tensor] = q.Units
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

// curve goes through the sizes at the numbers of the runs: a line through two, a parabola
// through the last three.
func (f *Fit) curve(y []float64) curve {
	n := len(y)
	if y[n-1] == y[n-2] {
		return curve{y[n-1]}
	}
	x1, x2, y1, y2 := f.runs[n-2].At, f.runs[n-1].At, y[n-2], y[n-1]
	slope := (y2 - y1) / (x2 - x1)
	if n == 2 {
		return curve{y1 - slope*x1, slope}
	}
	x0, y0 := f.runs[n-3].At, y[n-3]
	before := (y1 - y0) / (x1 - x0)
	bend := (slope - before) / (x2 - x0)
	return curve{y0 - before*x0 + bend*x0*x1, before - bend*(x0+x1), bend}
}

// scaled returns the run as it would be at another number.
func (f *Fit) scaled(n float64) *allocator.Run {
	r := &allocator.Run{Requests: slices.Clone(f.base.Requests), Addresses: f.base.Addresses, Reserved: f.base.Reserved}
	for i := range r.Requests {
		if q := &r.Requests[i]; q.Op == allocator.Make {
			q.Units = uint32(min((f.sizes[q.Tensor].at(n)+unit-1)/unit, 1<<32-1))
		}
	}
	return r
}

// At predicts the run at another number.
func (f *Fit) At(n float64) allocator.Result {
	return f.scaled(n).Play(f.own.Settings, -1)
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

// Largest returns the highest whole number at which the run fits into limit bytes, 0 for
// none.
func (f *Fit) Largest(limit uint64) int {
	fits := func(n int) bool { return f.At(float64(n)).Peak <= limit }
	if !fits(1) {
		return 0
	}
	low, high := 1, 2
	for high < 1<<24 && fits(high) {
		low, high = high, high*2
	}
	for high-low > 1 {
		if middle := (low + high) / 2; fits(middle) {
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
	sizes := f.base.sizes()
	by := map[string]*Growth{}
	for t := range live {
		text := f.base.Sites[f.base.Stacks[t]].Text
		g := by[text]
		if g == nil {
			g = &Growth{Text: text}
			by[text] = g
		}
		g.Base += uint64(sizes[t]) * unit
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

// shownGrowths is how many stacks Write shows.
const shownGrowths = 10

// Limits are what must hold a run, in bytes, 0 for no limit.
type Limits struct {
	// Memory is of a GPU, for all that the process holds there.
	Memory uint64
	// Reserved is for PyTorch's reserved memory alone.
	Reserved uint64
}

// Write writes the fit as text: the peak at each number of to, and the largest number that
// fits. Without limits it says of the recordings' own GPU what fits, where its size is known.
func (f *Fit) Write(w io.Writer, to []float64, limits Limits, o Options) error {
	memory := limits.Memory
	page := render.NewPage(w, o.Width, o.Color)
	size := func(n uint64) string { return bytefmt.Format(int64(n)) }
	last, beside := to[len(to)-1], f.base.Beside
	gpu := memory
	if limits == (Limits{}) {
		gpu = f.base.Memory
	}
	page.Heading("%s", f.base.title(f.base.Name))
	peak := f.At(last)
	if beside > 0 {
		page.Line("At %g PyTorch would reserve %s at the peak: about %s in nvidia-smi, with the %s that the process held besides, such as CUDA's context.", last, size(peak.Peak), size(peak.Peak+beside), size(beside))
	} else {
		page.Line("At %g PyTorch would reserve %s at the peak. nvidia-smi would show more: what the process held besides, such as CUDA's context, is not known.", last, size(peak.Peak))
	}
	if memory > 0 {
		page.Line("The largest number that fits into %s of GPU memory is %d: PyTorch can reserve %s of it.", size(memory), f.Largest(memory-min(memory, beside)), size(memory-min(memory, beside)))
	}
	if n := limits.Reserved; n > 0 {
		page.Line("The largest number at which PyTorch reserves no more than %s is %d.", size(n), f.Largest(n))
	}
	if limits == (Limits{}) {
		page.Line("To know whether that fits, and which number is the largest that does, say how much memory the GPU has, such as --memory 80GiB.")
	}
	page.Line("%.1f%% of the bytes are tensors that all recordings have.", 100*f.Paired())
	if wrong, ok := f.Check(); ok {
		page.Line("Check: the other recordings predict the peak at %g with an error of %+.1f%%.", f.at, 100*wrong)
	}
	if f.Curved > f.bytes/100 {
		page.Warn("%s of tensors grow faster than the number. Give a third recording, or the prediction is too low.", size(f.Curved))
	}
	var rows []render.Row
	add := func(n float64, r allocator.Result, real string) {
		cells := []string{fmt.Sprintf("%g", n), size(r.Peak), real, size(r.Allocated), cached(r.Peak-r.Allocated, r.Peak), "", "", ""}
		if beside > 0 {
			cells[5] = size(r.Peak + beside)
		}
		if gpu > 0 {
			cells[6] = verdict(beside > 0 && r.Peak+beside <= gpu, beside == 0 && r.Peak <= gpu)
		}
		if limits.Reserved > 0 {
			cells[7] = verdict(r.Peak <= limits.Reserved, false)
		}
		rows = append(rows, render.Row{Cells: cells})
	}
	for _, m := range f.runs {
		add(m.At, f.At(m.At), size(m.Run.peak()))
	}
	for _, n := range to {
		add(n, f.At(n), "")
	}
	page.Table([]string{">AT", ">PEAK RESERVED", ">MEASURED", ">IN TENSORS", ">CACHED", ">IN NVIDIA-SMI", "FITS INTO " + size(gpu), "RESERVES UP TO " + size(limits.Reserved)}, rows)
	page.Heading("In tensors at the peak at %g, and the same tensors at %g, by stack", last, f.at)
	rows = rows[:0]
	var more Growth
	growths := f.Growths(last)
	for i, g := range growths {
		if i < shownGrowths {
			rows = append(rows, render.Row{Cells: []string{size(g.Base), size(g.Predicted)}, Below: []string{g.Text}})
			continue
		}
		more.Base += g.Base
		more.Predicted += g.Predicted
	}
	if n := len(growths) - shownGrowths; n > 0 {
		rows = append(rows, render.Row{Cells: []string{size(more.Base), size(more.Predicted)}, Below: []string{fmt.Sprintf("of %d more", n)}})
	}
	page.Table([]string{fmt.Sprintf(">AT %g", f.at), fmt.Sprintf(">AT %g", last)}, rows)
	return page.Flush("write fit")
}
