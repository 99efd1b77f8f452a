package export

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

func (o Options) top(n int) int {
	if o.Top < 0 {
		return n
	}
	return min(n, cmp.Or(o.Top, 10))
}

// stackTable writes a row for each stack: the cells that figures returns and the labels, and
// under them a few frames.
func stackTable[T any](page *render.Page, several bool, header []string, stacks []T, figures func(T) (*snapshot.Sample, []string)) {
	labels := shownLabels(several)
	for _, l := range labels {
		header = append(header, strings.ToUpper(l.Title))
	}
	rows := make([]render.Row, len(stacks))
	for i, stack := range stacks {
		s, cells := figures(stack)
		for _, l := range labels {
			cells = append(cells, l.Get(&s.Labels))
		}
		rows[i] = render.Row{Cells: cells, Below: []string{render.Brief(s.Frames(), briefFrames)}}
	}
	page.Table(header, rows)
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

// alike returns the samples as rows of a table of stacks: those that differ only in labels and frames
// which it does not show, such as the module that they are in, are one.
func alike(s *snapshot.Snapshot) (rows []*snapshot.Sample) {
	labels := shownLabels(s.Several())
	at := map[string]int{}
	var key []byte
	for i := range s.Samples {
		x := &s.Samples[i]
		key = key[:0]
		for _, l := range labels {
			key = append(append(key, l.Get(&x.Labels)...), 0)
		}
		key = append(key, render.Brief(x.Frames(), briefFrames)...)
		if j, ok := at[string(key)]; ok {
			sum := *rows[j]
			sum.Values.Add(&x.Values)
			rows[j] = &sum
			continue
		}
		at[string(key)] = len(rows)
		rows = append(rows, x)
	}
	return rows
}

// largest writes the stacks that have most of the first column, under the heading that
// heading writes for the number of stacks that are shown and of all.
func largest(page *render.Page, s *snapshot.Snapshot, c columns, o Options, heading func(shown, of int)) {
	var found []*snapshot.Sample
	all := make(map[string]int64) // by class
	for _, x := range alike(s) {
		if n := c.first(&x.Values); n != 0 {
			found = append(found, x)
			all[render.Class(x.Kind)] += n
		}
	}
	slices.SortStableFunc(found, func(a, b *snapshot.Sample) int {
		return cmp.Compare(c.first(&b.Values), c.first(&a.Values))
	})
	shown := found[:o.top(len(found))]
	heading(len(shown), len(found))
	if len(shown) > 0 {
		stackTable(page, s.Several(), c.header(), shown, func(x *snapshot.Sample) (*snapshot.Sample, []string) {
			return x, c.cells(&x.Values, all[render.Class(x.Kind)])
		})
	}
}

func stackRows(page *render.Page, s *snapshot.Snapshot, title string, c columns, o Options) {
	largest(page, s, c, o, func(shown, of int) {
		if of == 0 {
			page.Heading("%s: nothing", title)
		} else {
			page.Heading("%s: %d of %d stacks", title, shown, of)
		}
	})
}

// columns are the values that a table of a page has. The first one, if it is
// of bytes, has its share of its class beside it.
type columns []*snapshot.Value

var (
	held   = columnsOf("inuse_space", "inuse_objects")
	failed = columnsOf("failed_objects", "failed_space")
)

func columnsOf(names ...string) (c columns) {
	for _, name := range names {
		i := slices.IndexFunc(snapshot.AllValues[:], func(v snapshot.Value) bool { return v.Name == name })
		c = append(c, &snapshot.AllValues[i])
	}
	return c
}

// succeeded has every value that is not of failed calls, bytes in use first.
func succeeded() (c columns) {
	for i := range snapshot.AllValues {
		if v := &snapshot.AllValues[i]; !v.Failed {
			c = append(c, v)
		}
	}
	slices.Reverse(c)
	return c
}

func (c columns) header() (header []string) {
	for i, v := range c {
		header = append(header, ">"+v.Title)
		if i == 0 && v.Unit == snapshot.Bytes {
			header = append(header, ">OF CLASS")
		}
	}
	return header
}

func (c columns) first(v *snapshot.Values) int64 { return *c[0].Of(v) }

// cells returns the cells of one row; all is the sum of its class in the first column.
func (c columns) cells(row *snapshot.Values, all int64) (cells []string) {
	for i, v := range c {
		n := *v.Of(row)
		if v.Unit == snapshot.Count {
			cells = append(cells, bytefmt.Count(n))
			continue
		}
		cells = append(cells, bytefmt.Format(n))
		if i == 0 {
			cells = append(cells, bytefmt.Percent(n, all))
		}
	}
	return cells
}

func label(name string) *snapshot.Label {
	return &snapshot.AllLabels[slices.IndexFunc(snapshot.AllLabels[:], func(l snapshot.Label) bool { return l.Name == name })]
}
