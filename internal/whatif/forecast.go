package whatif

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/output/table"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// shownGrowths is how many stacks Write shows.
const shownGrowths = 10

// tested is up to how many times the highest recorded number predictions were compared with real
// runs.
const tested = 4

// heldOut is with how many programs ranges were compared that have no cause which a Fit does not model: their
// peaks at up to tested times the highest number lay within. docs/whatif.md has them.
const heldOut = 6

// Limits are what must hold a run, in bytes, 0 for no limit.
type Limits struct {
	// Memory is of a GPU, for all that the process holds there.
	Memory uint64
	// Reserved is for PyTorch's reserved memory alone.
	Reserved uint64
}

// A Forecast is what a Fit predicts. Sizes are in bytes.
type Forecast struct {
	SchemaVersion int           `json:"schema_version"`
	Process       string        `json:"process"` // comm
	GPU           string        `json:"gpu"`     // "" if not known
	Rows          []ForecastRow `json:"rows"`
	// Beside is what the process held beside what PyTorch reserved, 0 if not known.
	Beside uint64 `json:"beside_bytes,omitempty"`
	// Memory and Reserved say what the Limits let run. That of Memory is without Beside.
	Memory   *Largest `json:"memory,omitempty"`
	Reserved *Largest `json:"reserved,omitempty"`
	// Paired, Workspaces, Alone and Curved are those of the Fit, and Unseen is Fit.Unseen of the highest number asked for.
	Paired     float64 `json:"paired"`
	Workspaces uint64  `json:"sum_workspace_bytes,omitempty"`
	Unseen     uint64  `json:"unseen_sum_workspace_bytes,omitempty"`
	Alone      uint64  `json:"alone_bytes,omitempty"`
	Curved     uint64  `json:"curved_bytes,omitempty"`
	// Wrong is what Fit.Check returns, nil with two recordings.
	Wrong *float64 `json:"check_error,omitempty"`
	// Unmodelled says why no row has a range, nothing if they have one.
	Unmodelled []string `json:"unmodelled,omitempty"`
	// CuDNN is as Prediction.Workspaces, of the highest recorded number.
	CuDNN uint64 `json:"cudnn_workspace_bytes,omitempty"`
}

// A ForecastRow is the run at one number.
type ForecastRow struct {
	At        float64 `json:"at"`
	Peak      uint64  `json:"peak_reserved_bytes"`
	Allocated uint64  `json:"in_tensors_bytes"`
	// Low and High are what Fit.Spread returns, or Measured. They are 0 where a peak may lie outside: where
	// the run has an unmodelled cause, and beyond the numbers that were tested.
	Low  uint64 `json:"peak_low_bytes,omitempty"`
	High uint64 `json:"peak_high_bytes,omitempty"`
	// Needed is the most that tensors need, at whatever moment.
	Needed uint64 `json:"needed_bytes"`
	// Measured is the peak of the recording, 0 if there is none of this number.
	Measured uint64 `json:"measured_bytes,omitempty"`
}

// reserved returns what PyTorch reserves: what was measured, or else what is predicted.
func (r *ForecastRow) reserved() uint64 { return cmp.Or(r.Measured, r.Peak) }

// fits says whether what PyTorch reserves, and what is held besides, is within a limit.
func (r *ForecastRow) fits(limit, beside uint64) string {
	low, high := r.Low, r.High
	if high == 0 { // not known
		low, high = r.Peak, math.MaxInt64
	}
	return verdict(high+beside <= limit, low+beside <= limit)
}

// row returns the row of a number, nil if there is none.
func (c *Forecast) row(n float64) *ForecastRow {
	i := slices.IndexFunc(c.Rows, func(r ForecastRow) bool { return r.At == n })
	if i < 0 {
		return nil
	}
	return &c.Rows[i]
}

// or returns l, or without limits that of the recordings' own GPU, where its size is known.
func (l Limits) or(base *Run) Limits {
	if l == (Limits{}) {
		l.Memory = base.Memory
	}
	return l
}

// Forecast predicts the run at each number of to, and what limits let run, by default the recordings' own
// GPU. The recorded numbers come first.
func (f *Fit) Forecast(to []float64, limits Limits) *Forecast {
	limits = limits.or(f.base)
	c := &Forecast{SchemaVersion: 1, Process: f.base.Name, GPU: f.base.GPU, Beside: f.base.Beside, Paired: f.Paired(), Workspaces: f.Workspaces, Alone: f.Alone, Curved: f.Curved, CuDNN: f.base.workspaces()}
	c.Unmodelled = f.unmodelled()
	c.Unseen = f.Unseen(slices.Max(to))
	add := func(n float64, measured uint64) {
		if c.row(n) != nil {
			return
		}
		r := f.At(n)
		row := ForecastRow{At: n, Peak: r.Peak, Allocated: r.Allocated, Needed: f.scaled(n).Play(uncached, -1).Peak, Measured: measured}
		switch {
		case measured > 0:
			row.Low, row.High = measured, measured
		case len(c.Unmodelled) == 0 && n <= tested*f.at:
			row.Low, row.High = f.Spread(n, r.Peak)
		}
		c.Rows = append(c.Rows, row)
	}
	for _, m := range f.runs {
		add(m.At, m.Run.peak())
	}
	for _, n := range to {
		add(n, 0)
	}
	if limits.Memory > 0 {
		x := f.largest(limits.Memory-min(limits.Memory, c.Beside), false)
		c.Memory = &x
	}
	if limits.Reserved > 0 {
		x := f.largest(limits.Reserved, true)
		c.Reserved = &x
	}
	if wrong, ok := f.Check(); ok {
		c.Wrong = &wrong
	}
	return c
}

func format(n uint64) string { return bytefmt.Format(int64(n)) }

// emptying says what runs only because PyTorch gives back what it has cached.
func (x *Largest) emptying() string {
	switch {
	case x.Emptying <= x.Kept:
		return ""
	case x.Kept == 0:
		return fmt.Sprintf(" Up to %d the run would not fail, but PyTorch would have to give cached memory back to CUDA on the way, which takes time.", x.Emptying)
	}
	return fmt.Sprintf(" Up to %d the run would not fail either, but PyTorch would have to give cached memory back to CUDA on the way, which takes time.", x.Emptying)
}

// reliable says how far the prediction for a number can be relied on.
func (f *Fit) reliable(page *render.Page, c *Forecast, n float64) {
	follow := ""
	if part := f.part(c.Workspaces); part > 0.0005 {
		follow = fmt.Sprintf(" %.1f%% are workspaces of sums, whose sizes follow from what is summed.", 100*part)
	}
	page.Line("%.1f%% of the bytes are in tensors that each of the recordings has.%s", 100*c.Paired, follow)
	before := f.runs[len(f.runs)-2].At
	switch {
	case c.Wrong != nil && n > f.at:
		grown := *c.Wrong * (n - f.at) / (f.at - before)
		page.Line("Check: the other recordings predict the peak at %g with an error of %+.1f%%. If the error grows with the distance, it is about %+.1f%% at %g.", f.at, 100**c.Wrong, 100*grown, n)
	case c.Wrong != nil:
		page.Line("Check: the other recordings predict the peak at %g with an error of %+.1f%%.", f.at, 100**c.Wrong)
	case n > f.at:
		page.Line("Two recordings do not show how far the prediction is off. A third one, such as of %g, would.", f.at+(f.at-before))
	}
	if n > tested*f.at {
		page.Warn("%g is more than %d times the highest recorded number, which is as far as predictions were compared with real runs. Record a number nearer to it.", n, tested)
	}
	if peak := f.At(n).Peak; c.Unseen > peak/100 {
		page.Warn("At %g some sums have so many rows that PyTorch asks for workspaces, of up to %s, and no recording has any for them. What they sum is guessed from the sizes of tensors. PEAK MAY BE is also without these workspaces. A recording of a number nearer to %g shows them.", n, format(c.Unseen), n)
	}
	if c.Alone > f.total/100 {
		page.Warn("%.1f%% of the bytes are tensors that only the recording of %g has. They are predicted to be as large at %g. PEAK MAY BE is also with them growing as the number does. A third recording shows which.", 100*f.part(c.Alone), f.at, n)
	}
	if c.Curved > f.total/100 {
		page.Warn("%s of tensors grow faster than the number. Give a third recording, or the prediction is too low.", format(c.Curved))
	}
	if text := doubt(c.CuDNN, f.base.peak(), "at another size"); text != "" {
		page.Warn("%s", text)
	}
}

// Write writes the fit as text: the peak at each number of to, and the largest number that
// fits.
func (f *Fit) Write(w io.Writer, to []float64, limits Limits, o Options) error {
	limits = limits.or(f.base)
	page := render.NewPage(w, o.Width, o.Color)
	c := f.Forecast(to, limits)
	last := to[len(to)-1]
	page.Heading("%s", f.base.title(f.base.Name))
	if !slices.ContainsFunc(f.Growths(last), func(g Growth) bool { return g.Base != g.Predicted }) {
		page.Warn("Nothing grew from run to run, so the prediction for every number is what was measured. Are these runs of different numbers, and does memory depend on that number?")
	}
	page.Line("%s%s", c.answers(last, limits.Memory, f.base.Memory), c.says(last))
	if x := c.Memory; x != nil {
		room := fmt.Sprintf(": PyTorch can reserve %s of it", format(x.Limit))
		if c.Beside == 0 {
			room = ", counting PyTorch's memory alone because the recording lacks the rest"
		}
		switch {
		case x.Limit == 0:
			page.Line("No number fits into %s of GPU memory: the process holds %s there besides what PyTorch reserves.", format(limits.Memory), format(c.Beside))
		case x.Kept == 0:
			page.Line("No number fits into %s of GPU memory: PyTorch can reserve %s of it, and at 1 it would reserve %s.%s", format(limits.Memory), format(x.Limit), format(f.At(1).Peak), x.emptying())
		case x.Kept == maxNumber:
			page.Line("Every number up to %d fits into %s of GPU memory%s.", x.Kept, format(limits.Memory), room)
		default:
			page.Line("The largest number that fits into %s of GPU memory is %d%s.%s%s", format(limits.Memory), x.Kept, room, x.emptying(), f.far(x.Kept))
		}
	}
	if x := c.Reserved; x != nil {
		switch x.Kept {
		case 0:
			page.Line("There is no number at which PyTorch reserves no more than %s: at 1 it would reserve %s.%s", format(x.Limit), format(f.At(1).Peak), x.emptying())
		case maxNumber:
			page.Line("At every number up to %d PyTorch reserves no more than %s.", x.Kept, format(x.Limit))
		default:
			page.Line("The largest number at which PyTorch reserves no more than %s is %d.%s%s", format(x.Limit), x.Kept, x.emptying(), f.far(x.Kept))
		}
	}
	if limits == (Limits{}) {
		row, user := c.row(last), "the process"
		if c.Beside == 0 {
			user = "PyTorch alone"
		}
		page.Line("%g fits into a GPU that has about %s for %s. How much this GPU has, the recordings do not say: give it, such as --memory 80GiB, to know the largest number that fits, too.", last, format(max(row.reserved(), row.High)+c.Beside), user)
	}
	if slices.ContainsFunc(c.Rows, func(r ForecastRow) bool { return spread(r.Low, r.High) != "" }) {
		page.Line("%s The peaks of all %d programs that fit was compared with lay within it.", whySpread, heldOut)
	}
	if len(c.Unmodelled) > 0 {
		page.Line("PEAK MAY BE is left out: %s.", strings.Join(c.Unmodelled, ", and "))
	}
	f.reliable(page, c, slices.Max(to))
	f.table(page, c, limits)
	f.stacks(page, last)
	return page.Flush("write fit")
}

// far warns of a number that is too far from those that were measured.
func (f *Fit) far(n int) string {
	if float64(n) <= tested*f.at {
		return ""
	}
	return fmt.Sprintf(" %d is %.0f times the largest number that was measured: record a run nearer to it before you rely on it.", n, float64(n)/f.at)
}

// answers says whether a number fits into so much memory of a GPU, "" if that is not known. own is what the
// GPU of the recordings has.
func (c *Forecast) answers(n float64, gpu, own uint64) string {
	if gpu == 0 {
		return ""
	}
	into := format(gpu)
	if gpu == own {
		into = "this GPU, " + into
	}
	if c.Beside == 0 {
		into += ", counting PyTorch's memory alone"
	}
	fits := map[string]string{"yes": "fits", "perhaps": "perhaps fits", "no": "does not fit"}[c.row(n).fits(gpu, c.Beside)]
	return fmt.Sprintf("%g %s into %s. ", n, fits, into)
}

// says returns what PyTorch reserves at the peak at a number, and what nvidia-smi shows then.
func (c *Forecast) says(n float64) string {
	row := c.row(n)
	text := fmt.Sprintf("At %g PyTorch would reserve %s at the peak", n, format(row.Peak))
	if row.Measured > 0 {
		text = fmt.Sprintf("At %g PyTorch reserved %s at the peak, as measured", n, format(row.Measured))
	}
	if c.Beside > 0 {
		return fmt.Sprintf("%s: about %s in nvidia-smi, with the %s that the process held besides, such as CUDA's context.", text, format(row.reserved()+c.Beside), format(c.Beside))
	}
	return text + ". Not known, because the recording lacks it: what the process holds on the GPU besides, such as CUDA's context and the code of libraries. nvidia-smi counts it, and the GPU must have room for it, too."
}

// table writes a row for each number.
func (f *Fit) table(page *render.Page, c *Forecast, limits Limits) {
	fitting := "FITS INTO "
	if c.Beside == 0 {
		fitting = "PYTORCH ALONE FITS INTO "
	}
	t := table.New(table.TextRight("AT"), table.Bytes("PEAK RESERVED"), table.Ending("PEAK MAY BE"), table.SomeBytes("MEASURED"), table.Bytes("IN TENSORS"), table.TextRight("CACHED"),
		table.SomeBytes("IN NVIDIA-SMI"), table.Text(fitting+format(limits.Memory)), table.Text("RESERVES UP TO "+format(limits.Reserved)))
	for _, r := range c.Rows {
		var inAll uint64
		fits, reserves := "", ""
		if c.Beside > 0 {
			inAll = r.reserved() + c.Beside
		}
		if limits.Memory > 0 {
			fits = r.fits(limits.Memory, c.Beside)
		}
		if limits.Reserved > 0 {
			reserves = r.fits(limits.Reserved, 0)
		}
		t.Add(fmt.Sprintf("%g", r.At), int64(r.Peak), spread(r.Low, r.High), int64(r.Measured), int64(r.Allocated), cached(r.Peak-r.Allocated, r.Peak), int64(inAll), fits, reserves)
	}
	t.Text(page)
}

// stacks writes what tensors hold at the peak at a number, and what they held at the largest that was
// measured.
func (f *Fit) stacks(page *render.Page, n float64) {
	heading, columns := fmt.Sprintf("In tensors at the peak at %g", n), []table.Column{table.Bytes(fmt.Sprintf("AT %g", n))}
	if n != f.at {
		heading, columns = fmt.Sprintf("%s, and the same tensors at %g", heading, f.at), append([]table.Column{table.Bytes(fmt.Sprintf("AT %g", f.at))}, columns...)
	}
	page.Heading("%s, by stack", heading)
	t := table.New(columns...)
	row := func(text string, g Growth) {
		cells := []any{int64(g.Base), int64(g.Predicted)}
		t.AddAbove([]string{text}, cells[len(cells)-len(columns):]...)
	}
	var more Growth
	growths := f.Growths(n)
	for i, g := range growths {
		if i < shownGrowths {
			row(g.Text, g)
			continue
		}
		more.Base += g.Base
		more.Predicted += g.Predicted
	}
	if n := len(growths) - shownGrowths; n > 0 {
		row(fmt.Sprintf("of %d more", n), more)
	}
	t.Text(page)
}
