package export

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
)

// tellingFrames is how many frames of a stack a page shows.
const tellingFrames = 4

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
		rows[i] = render.Row{Cells: cells, Below: render.Telling(s.Frames(), tellingFrames)}
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

func stacks(page *render.Page, s *snapshot.Snapshot, title string, c columns, o Options) {
	largest(page, s, c, o, func(shown, of int) {
		if of == 0 {
			page.Heading("%s: nothing", title)
		} else {
			page.Heading("%s: %d of %d stacks", title, shown, of)
		}
	})
}
