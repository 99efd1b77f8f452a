package export

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/table"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// Most returns how many of n rows are shown: o.Top, all if that is negative, usual if it is 0.
func (o Options) Most(n, usual int) int {
	if o.Top < 0 {
		return n
	}
	return min(n, cmp.Or(o.Top, usual))
}

func (o Options) top(n int) int { return o.Most(n, 10) }

// briefFrames is how many frames of a stack a row of a table has.
const briefFrames = 4

// stackBy has the columns in which rows of a table of stacks differ: a few frames of the stack, first, and
// the labels that pages have columns for.
func stackBy(several bool) By {
	out := By{{name: "stack", empty: true, of: func(s *snapshot.Sample) string { return render.Brief(s.Frames(), briefFrames) }}}
	for i := range snapshot.AllLabels {
		if l := &snapshot.AllLabels[i]; l.Title != "" && (several || !l.PerRun) {
			out = append(out, column{name: l.Name, title: strings.ToUpper(l.Title), empty: true, of: func(s *snapshot.Sample) string { return l.Get(&s.Labels) }})
		}
	}
	return out
}

// stackTable returns a table of stacks: figures and labels, and under these the frames. add adds a row with
// the values of stackBy.
func stackTable(by By, figures ...table.Column) (t *table.Table, add func(values []string, cells ...any)) {
	t = table.New(append(figures, by[1:].columns()...)...)
	return t, func(values []string, cells ...any) {
		t.AddAbove(values[:1], append(cells, table.Texts(values[1:])...)...)
	}
}

// alike returns the samples as rows of a table of stacks: those that differ only in labels and frames
// which it does not show, such as the module that they are in, are one.
func alike(s *snapshot.Snapshot, by By) (rows []snapshot.Sample) {
	numbers := render.Index[string]{}
	for i := range s.Samples {
		x := &s.Samples[i]
		if n, fresh := numbers.Number(strings.Join(by.values(x), "\x00")); fresh {
			rows = append(rows, *x)
		} else {
			rows[n].Values.Add(&x.Values)
		}
	}
	return rows
}

// most returns the stacks that have most of a figure, o.Top of them, the number of all, and the sum of
// each class of memory.
func most(s *snapshot.Snapshot, by By, figure figureOf, o Options) (shown []*snapshot.Sample, of int, sums map[string]int64) {
	sums = make(map[string]int64)
	for _, x := range pointers(alike(s, by)) {
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
	by := stackBy(s.Several())
	shown, of, sums := most(s, by, s.Meta.Held, o)
	if of == 0 {
		page.Heading("%s: nothing", title)
		return
	}
	page.Heading("%s: %d of %d stacks", title, len(shown), of)
	t, add := stackTable(by, table.Bytes(column), table.Share("OF CLASS"), table.SomeCount("LIVE"))
	for _, x := range shown {
		held := s.Meta.Held(&x.Values)
		add(by.values(x), held, table.Part{Of: held, Whole: sums[snapshot.Class(x.Kind)]}, x.InuseObjects)
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
