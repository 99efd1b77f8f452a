package export

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/table"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

func (o Options) top(n int) int {
	if o.Top < 0 {
		return n
	}
	return min(n, cmp.Or(o.Top, 10))
}

// addStack adds a row for a stack: cells and the labels, and under them a few frames.
func addStack(t *table.Table, labels []*snapshot.Label, s *snapshot.Sample, cells ...any) {
	for _, l := range labels {
		cells = append(cells, l.Get(&s.Labels))
	}
	t.AddAbove([]string{render.Brief(s.Frames(), briefFrames)}, cells...)
}

// stackTable returns a table for rows of addStack.
func stackTable(labels []*snapshot.Label, figures ...table.Column) *table.Table {
	t := table.New(figures...)
	for _, l := range labels {
		t.Columns = append(t.Columns, table.Text(strings.ToUpper(l.Title)))
	}
	return t
}

// briefFrames is how many frames of a stack a row of a table has.
const briefFrames = 4

// shownLabels are the labels that pages have columns for.
func shownLabels(several bool) (out []*snapshot.Label) {
	for i := range snapshot.AllLabels {
		if l := &snapshot.AllLabels[i]; l.Title != "" && (several || !l.PerRun) {
			out = append(out, l)
		}
	}
	return out
}

// stackBy has the columns in which rows of a table of stacks differ: a few frames of the stack, first, and
// the labels that pages have columns for.
func stackBy(several bool) By {
	out := By{{name: "stack", empty: true, of: func(s *snapshot.Sample) string { return render.Brief(s.Frames(), briefFrames) }}}
	for _, l := range shownLabels(several) {
		out = append(out, column{name: l.Name, title: strings.ToUpper(l.Title), empty: true, of: func(s *snapshot.Sample) string { return l.Get(&s.Labels) }})
	}
	return out
}

// alike returns the samples as rows of a table of stacks: those that differ only in labels and frames
// which it does not show, such as the module that they are in, are one.
func alike(s *snapshot.Snapshot) (rows []*snapshot.Sample) {
	by, at := stackBy(s.Several()), map[string]int{}
	for i := range s.Samples {
		x := &s.Samples[i]
		key := strings.Join(by.values(x), "\x00")
		if j, ok := at[key]; ok {
			sum := *rows[j]
			sum.Values.Add(&x.Values)
			rows[j] = &sum
			continue
		}
		at[key] = len(rows)
		rows = append(rows, x)
	}
	return rows
}

// most returns the stacks that have most of a figure, o.Top of them, the number of all, and the sum of
// each class of memory.
func most(s *snapshot.Snapshot, figure figureOf, o Options) (shown []*snapshot.Sample, of int, sums map[string]int64) {
	sums = make(map[string]int64)
	for _, x := range alike(s) {
		if n := figure(&x.Values); n != 0 {
			shown = append(shown, x)
			sums[snapshot.Class(x.Kind)] += n
		}
	}
	slices.SortStableFunc(shown, func(a, b *snapshot.Sample) int { return cmp.Compare(figure(&b.Values), figure(&a.Values)) })
	return shown[:o.top(len(shown))], len(shown), sums
}

// stackRows writes the stacks that hold most.
func stackRows(page *render.Page, s *snapshot.Snapshot, title string, o Options) {
	column := "IN USE"
	if s.Meta.Peaks {
		column = "AT PEAK"
	}
	shown, of, sums := most(s, s.Meta.Held, o)
	if of == 0 {
		page.Heading("%s: nothing", title)
		return
	}
	page.Heading("%s: %d of %d stacks", title, len(shown), of)
	labels := shownLabels(s.Several())
	t := stackTable(labels, table.Bytes(column), table.Share("OF CLASS"), table.SomeCount("LIVE"))
	for _, x := range shown {
		held := s.Meta.Held(&x.Values)
		addStack(t, labels, x, held, table.Part{Of: held, Whole: sums[snapshot.Class(x.Kind)]}, x.InuseObjects)
	}
	t.Text(page)
}

// succeeded has every value that is not of failed calls, bytes in use first.
func succeeded() (all []*snapshot.Value) {
	for i := range snapshot.AllValues {
		if v := &snapshot.AllValues[i]; !v.Failed {
			all = append(all, v)
		}
	}
	slices.Reverse(all)
	return all
}

func label(name string) *snapshot.Label {
	return &snapshot.AllLabels[slices.IndexFunc(snapshot.AllLabels[:], func(l snapshot.Label) bool { return l.Name == name })]
}
