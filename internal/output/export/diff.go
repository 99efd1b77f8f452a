package export

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/table"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// A Side is one of the snapshots that are compared, with what readers call it.
type Side struct {
	*snapshot.Snapshot
	Name string // such as "run.gmt at its peak"
}

// Diff writes how the memory in use changed from a to b. With o.By it has the rows of these
// columns. Else it says what the memory is for, which lines of the program have it, and under
// which stacks it is. The largest change comes first. Stacks are equal when their functions,
// files, lines and labels are; addresses and labels that are PerRun or Guessed do not count.
// The snapshots of different runs are aligned first (Align).
func Diff(w io.Writer, a, b Side, o Options) error {
	a.Snapshot, b.Snapshot = a.ByRank(), b.ByRank()
	align(&a, &b)
	page := render.NewPage(w, o.Width, o.Color)
	for _, text := range sidesOf(a, b) {
		page.Line("%s", text)
	}
	names := []string{"category", "line"}
	if o.By != nil {
		names = o.By.names()
	}
	lacking(page, names, pointers(slices.Concat(a.Samples, b.Samples)), &b.Meta)
	if o.By != nil {
		diffBy(page, a.Snapshot, b.Snapshot, o.By, "Memory on GPUs", o)
		return page.Flush("write diff")
	}
	diffBy(page, gpuOnly(a.Snapshot), gpuOnly(b.Snapshot), categoryBy, "What for", o)
	if text := cachedBy(a.Snapshot, b.Snapshot); text != "" {
		page.Line("  %s", text)
	}
	diffBy(page, a.Snapshot, b.Snapshot, lineBy, "Lines of the program", o)
	diffStacks(page, a.Snapshot, b.Snapshot, o)
	return page.Flush("write diff")
}

// Differences returns what Diff says of two snapshots first, and its tables of memory on GPUs, whole.
func Differences(a, b Side) (says []string, tables []table.Listing) {
	align(&a, &b)
	for _, x := range []struct {
		name string
		by   By
	}{{"What for", categoryBy}, {"Lines of the program", lineBy}} {
		if rows := differences(tally(x.by, gpuOnly(a.Snapshot), gpuOnly(b.Snapshot))[""], (*tallied).change); len(rows) > 0 {
			tables = append(tables, diffTable(rows, x.by).Listing(x.name))
		}
	}
	return sidesOf(a, b), tables
}

// sidesOf says how much more or less is held, and what the sides are.
func sidesOf(a, b Side) []string {
	return []string{headline(a, b), fmt.Sprintf("Before: %s: %s", a.Name, momentOf(a.Snapshot)), fmt.Sprintf("After:  %s: %s", b.Name, momentOf(b.Snapshot))}
}

// align aligns the snapshots of different runs.
func align(a, b *Side) {
	if !a.Meta.Start.Equal(b.Meta.Start) {
		aligned := Align(a.Snapshot, b.Snapshot)
		a.Snapshot, b.Snapshot = aligned[0], aligned[1]
	}
}

// What diff shows if it is not told.
var (
	categoryBy, _ = ParseBy("category")
	lineBy, _     = ParseBy("line")
)

// headline says how much more or less is held on GPUs.
func headline(a, b Side) string {
	held := &overview{shown: inUse}
	before, after := held.purpose(onGPU(a.Snapshot)), held.purpose(onGPU(b.Snapshot))
	x, y := before.bytes, after.bytes
	switch tensors := after.tensors - before.tensors; {
	case x == y && tensors != 0:
		return fmt.Sprintf("As much memory on GPUs: %s, with %s in tensors", bytefmt.Format(x), bytefmt.Signed(tensors))
	case x == y:
		return fmt.Sprintf("As much memory on GPUs: %s", bytefmt.Format(x))
	case x < y:
		return fmt.Sprintf("%s more memory on GPUs: %s, and %s before", bytefmt.Format(y-x), bytefmt.Format(y), bytefmt.Format(x))
	}
	return fmt.Sprintf("%s less memory on GPUs: %s, and %s before", bytefmt.Format(x-y), bytefmt.Format(y), bytefmt.Format(x))
}

// cachedBy names the line that made PyTorch take from CUDA what changed most of the cached memory. It is "" for
// less than 1 MiB.
func cachedBy(a, b *snapshot.Snapshot) string {
	cached := func(s *snapshot.Snapshot) *snapshot.Snapshot {
		out := *s
		out.Samples = nil
		for _, x := range s.Samples {
			if x.Kind == snapshot.Cached {
				x.Kind = event.KindDevice.String() // lineBy has no line for what is cached
				out.Samples = append(out.Samples, x)
			}
		}
		return &out
	}
	rows := differences(tally(lineBy, cached(a), cached(b))[""], (*tallied).change)
	if len(rows) == 0 || abs(rows[0].change()) < 1<<20 {
		return ""
	}
	return fmt.Sprintf("Of what is cached, %s is in segments that PyTorch took for %s.", bytefmt.Signed(rows[0].change()), rows[0].values[0])
}

// gpuOnly returns a snapshot of the memory on GPUs.
func gpuOnly(s *snapshot.Snapshot) *snapshot.Snapshot {
	out := *s
	out.Samples = slices.DeleteFunc(slices.Clone(s.Samples), func(x snapshot.Sample) bool { return !snapshot.OnGPU(x.Kind) })
	return &out
}

// momentOf says how much was held on GPUs, by whom and when.
func momentOf(s *snapshot.Snapshot) string {
	sum := sumOf(onGPU(s))
	return fmt.Sprintf("%s of %s, %v after the trace began", bytefmt.Format(sum.InuseBytes), render.Target(s), s.Meta.Duration.Round(time.Millisecond))
}

// diffBy writes a row for each combination of values that has more or less in b than in a, the
// largest change first, of each of the classes of memory. That of GPUs, "", is called name.
func diffBy(page *render.Page, a, b *snapshot.Snapshot, by By, name string, o Options) {
	all := tally(by, a, b)
	for _, class := range classesOf(all) {
		rows := differences(all[class], (*tallied).change)
		heading := name
		switch {
		case class == "" && len(rows) == 0:
			page.Heading("%s: nothing changed", name)
			continue
		case len(rows) == 0:
			continue
		case class != "":
			heading = class + " memory"
		}
		page.Heading("%s: %s", heading, says(rows))
		shown := rows[:o.top(len(rows))]
		diffTable(shown, by).Text(page)
		if rest := len(rows) - len(shown); rest > 0 {
			page.Line("  and %d more (-n -1)", rest)
		}
	}
}

// diffTable returns the table of some rows of a comparison.
func diffTable(rows []*tallied, by By) *table.Table {
	t := table.New(append([]table.Column{table.SignedBytes("CHANGE"), table.Bytes("BEFORE"), table.Bytes("AFTER"), table.SignedCount("OBJECTS")}, by.columns()...)...)
	for _, x := range rows {
		before, after := &x.sums[0], &x.sums[1]
		t.Add(append([]any{x.change(), before.InuseBytes, after.InuseBytes, x.objects()}, table.Texts(x.values)...)...)
	}
	return t
}

// says says of how many rows what is new, gone, more and less.
func says(rows []*tallied) string {
	var new, gone, more, less, divided int
	for _, r := range rows {
		switch x, y := &r.sums[0], &r.sums[1]; {
		case x.InuseBytes == 0 && x.InuseObjects == 0:
			new++
		case y.InuseBytes == 0 && y.InuseObjects == 0:
			gone++
		case r.change() > 0:
			more++
		case r.change() < 0:
			less++
		default:
			divided++
		}
	}
	var words []string
	for _, w := range []struct {
		n         int
		one, many string
	}{{more, "holds", "hold more"}, {less, "holds", "hold less"}, {new, "is", "are new"}, {gone, "is", "are gone"}, {divided, "holds", "hold as much in other objects"}} {
		switch {
		case w.n == 1:
			_, rest, _ := strings.Cut(w.many, " ")
			words = append(words, "1 "+w.one+" "+rest)
		case w.n > 1:
			words = append(words, fmt.Sprintf("%d %s", w.n, w.many))
		}
	}
	return strings.Join(words, ", ")
}

// diffKey is equal for samples that Diff treats as one.
func diffKey(s *snapshot.Sample) string {
	var key []byte
	for i := range snapshot.AllLabels {
		if l := &snapshot.AllLabels[i]; !l.PerRun && !l.Guessed {
			key = fmt.Appendf(key, "%q ", l.Get(&s.Labels))
		}
	}
	for _, l := range s.Frames() {
		for _, f := range l.Lines {
			key = fmt.Appendf(key, "%q %q %d ", f.Function, f.File, f.Line)
		}
	}
	return string(key)
}

// changedStacks returns the stacks of a and b that differ, the largest change first, and the columns of
// their rows. A stack whose tensors are for something else in b has their category there.
func changedStacks(a, b *snapshot.Snapshot) (By, []*tallied) {
	by, categories := stackBy(false), map[string]string{}
	for i := range a.Samples {
		x := &a.Samples[len(a.Samples)-1-i] // the first of those with a key stays
		categories[diffKey(x)] = x.Category
	}
	for i := range b.Samples {
		categories[diffKey(&b.Samples[i])] = b.Samples[i].Category
	}
	by[by.index("category")].of = func(s *snapshot.Sample) string { return categories[diffKey(s)] }
	return by, differences(slices.Concat(slices.Collect(maps.Values(tally(by, a, b)))...), (*tallied).change, (*tallied).objects)
}

func diffStacks(page *render.Page, a, b *snapshot.Snapshot, o Options) {
	by, rows := changedStacks(a, b)
	if len(rows) == 0 {
		page.Heading("No stack changed")
		return
	}
	if o.Top == 0 {
		o.Top = 4 // the lines above say most
	}
	shown := rows[:o.top(len(rows))]
	page.Heading("By stack: %d of %d that changed", len(shown), len(rows))
	t, add := stackTable(by, table.SignedBytes("CHANGE"), table.SignedCount("OBJECTS"), table.Bytes("BEFORE"), table.Bytes("AFTER"))
	for _, x := range shown {
		before, after := &x.sums[0], &x.sums[1]
		add(x.values, x.change(), x.objects(), before.InuseBytes, after.InuseBytes)
	}
	t.Text(page)
}

func abs(n int64) int64 { return max(n, -n) }
