package export

import (
	"cmp"
	"maps"
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

// stackTable writes a row for each stack: what figures returns and the labels,
// and under them the frames that tell most.
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
		rows[i] = render.Row{Cells: cells, Below: []string{render.Telling(s.Frames(), 4)}}
	}
	page.Table(header, rows)
}

// shownLabels are the labels that pages have columns for.
func shownLabels(several bool) (out []*snapshot.Label) {
	for i := range snapshot.AllLabels {
		if l := &snapshot.AllLabels[i]; l.Title != "" && (several || !l.PerRun) {
			out = append(out, l)
		}
	}
	return out
}

// largest writes the stacks that have most of the first column, under what
// heading returns for their number and that of those shown.
func largest(page *render.Page, s *snapshot.Snapshot, c columns, o Options, heading func(shown, of int)) {
	var found []*snapshot.Sample
	all := make(map[string]int64) // by class
	for i := range s.Samples {
		x := &s.Samples[i]
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
	atPeak = columnsOf("peak_space")
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

// cells are for one row; all is what its class has in the first column.
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

// sum returns the values of a key, zero at first.
func sum[K comparable](sums map[K]*snapshot.Values, k K) *snapshot.Values {
	v := sums[k]
	if v == nil {
		v = new(snapshot.Values)
		sums[k] = v
	}
	return v
}

// owner is what most readers ask for first.
var owner = &snapshot.AllLabels[slices.IndexFunc(snapshot.AllLabels[:], func(l snapshot.Label) bool { return l.Name == "owner" })]

// groups writes one row for each value of a label (nil for totals) and each
// class, whose bytes (device, managed, host, ...) are never added up. It writes
// nothing when no sample has the label.
func groups(page *render.Page, samples []snapshot.Sample, by *snapshot.Label) {
	type key struct{ value, class string }
	columns := succeeded()
	sums, all := make(map[key]*snapshot.Values), make(map[string]int64)
	known := by == nil
	for i := range samples {
		s := &samples[i]
		if !s.Succeeded() {
			continue
		}
		k := key{class: render.Class(s.Kind)}
		if by != nil {
			k.value = by.Get(&s.Labels)
		}
		known = known || k.value != ""
		sum(sums, k).Add(&s.Values)
		all[k.class] += columns.first(&s.Values)
	}
	if !known || len(sums) == 0 {
		return
	}
	keys := slices.SortedFunc(maps.Keys(sums), func(a, b key) int {
		return cmp.Or(
			cmp.Compare(sums[b].InuseBytes, sums[a].InuseBytes),
			cmp.Compare(sums[b].AllocBytes, sums[a].AllocBytes),
			strings.Compare(a.value, b.value),
			strings.Compare(a.class, b.class),
		)
	})
	title, column, absent := "Totals", "", "" // without a value, a column is left out
	if by != nil {
		title, column, absent = "By "+by.Title, strings.ToUpper(by.Title), "-"
	}
	rows := make([]render.Row, len(keys))
	for i, k := range keys {
		rows[i].Cells = append([]string{cmp.Or(k.value, absent), k.class}, columns.cells(sums[k], all[k.class])...)
	}
	page.Heading("%s", title)
	page.Table(append([]string{column, "CLASS"}, columns.header()...), rows)
}
