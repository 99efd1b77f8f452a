package export

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
)

// values returns the named rows of snapshot.AllValues.
func values(names ...string) []*snapshot.Value {
	out := make([]*snapshot.Value, len(names))
	for i, name := range names {
		out[i] = &snapshot.AllValues[slices.IndexFunc(snapshot.AllValues[:], func(v snapshot.Value) bool { return v.Name == name })]
	}
	return out
}

// What pages have columns for: groups all that is not of failed calls, bytes
// in use first, and stacks what they are listed for, first what they are
// ordered by.
var (
	groupValues = func() (out []*snapshot.Value) {
		for i := range snapshot.AllValues {
			if v := &snapshot.AllValues[i]; !v.Failed {
				out = append(out, v)
			}
		}
		slices.Reverse(out)
		return out
	}()
	inUse  = values("inuse_space", "inuse_objects")
	atPeak = values("peak_space")
	failed = values("failed_objects", "failed_space")
)

// owner is what most readers ask for first.
var owner = &snapshot.AllLabels[slices.IndexFunc(snapshot.AllLabels[:], func(l snapshot.Label) bool { return l.Name == "owner" })]

// figures returns a value's cell for each column, and after the first one of
// bytes its share of all.
func figures(columns []*snapshot.Value, v, all *snapshot.Values) (cells []string) {
	for i, c := range columns {
		n := *c.Of(v)
		if c.Unit != snapshot.Bytes {
			cells = append(cells, bytefmt.Count(n))
			continue
		}
		cells = append(cells, bytefmt.Format(n))
		if i == 0 {
			cells = append(cells, bytefmt.Percent(n, *c.Of(all)))
		}
	}
	return cells
}

// figureTitles is the header of figures.
func figureTitles(columns []*snapshot.Value) (header []string) {
	for i, c := range columns {
		header = append(header, ">"+c.Title)
		if i == 0 && c.Unit == snapshot.Bytes {
			header = append(header, ">OF CLASS")
		}
	}
	return header
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

// A stackTable has a row for each stack: figures and labels, and under them
// the frames that tell most.
type stackTable struct {
	header []string
	labels []*snapshot.Label
	rows   []render.Row
}

func newStackTable(several bool, figures []string) *stackTable {
	t := &stackTable{header: figures, labels: shownLabels(several)}
	for _, l := range t.labels {
		t.header = append(t.header, strings.ToUpper(l.Title))
	}
	return t
}

func (t *stackTable) add(s *snapshot.Sample, figures []string) {
	cells := figures
	for _, l := range t.labels {
		cells = append(cells, l.Get(&s.Labels))
	}
	t.rows = append(t.rows, render.Row{Cells: cells, Below: render.Telling(s.Frames())})
}

// top returns how many of n stacks are shown.
func (o Options) top(n int) int {
	if o.Top < 0 {
		return n
	}
	return min(n, cmp.Or(o.Top, 10))
}

// largest returns the samples that have a value, the largest first.
func largest(samples []snapshot.Sample, v *snapshot.Value) (found []*snapshot.Sample) {
	for i := range samples {
		if *v.Of(&samples[i].Values) != 0 {
			found = append(found, &samples[i])
		}
	}
	slices.SortStableFunc(found, func(a, b *snapshot.Sample) int {
		return cmp.Compare(*v.Of(&b.Values), *v.Of(&a.Values))
	})
	return found
}

// stacks writes the stacks that have most of the first column.
func stacks(page *render.Page, s *snapshot.Snapshot, title string, columns []*snapshot.Value, o Options) {
	found := largest(s.Samples, columns[0])
	if len(found) == 0 {
		page.Heading("%s: nothing", title)
		return
	}
	shown := o.top(len(found))
	page.Heading("%s: %d of %d stacks", title, shown, len(found))
	stackRows(page, s, found, shown, columns)
}

// stackRows writes so many of the stacks that were found.
func stackRows(page *render.Page, s *snapshot.Snapshot, found []*snapshot.Sample, shown int, columns []*snapshot.Value) {
	all := make(map[string]*snapshot.Values)
	for _, x := range found {
		sum(all, render.Class(x.Kind)).Add(x.Values)
	}
	t := newStackTable(s.Several(), figureTitles(columns))
	for _, x := range found[:shown] {
		t.add(x, figures(columns, &x.Values, all[render.Class(x.Kind)]))
	}
	page.Table(t.header, t.rows)
}
