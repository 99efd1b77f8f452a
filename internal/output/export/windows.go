package export

import (
	"cmp"
	"io"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/keyed"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/table"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// WindowsReport writes the tensors that s saw in windows: see InWindows.
func WindowsReport(w io.Writer, s *snapshot.Snapshot, o Options) error {
	s = s.ByRank()
	page := render.NewPage(w, o.Width, o.Color)
	liveTitle(page, s)
	InWindows(page, s, o)
	page.Losses(loss.Telling(s.Loss), s.Notes)
	return page.Flush("write windows")
}

// InWindows writes the tensors that s saw in windows: for each process and GPU a row for each stack
// (o.Top of them, 10 by default), those that held most at the peak of a step first.
func InWindows(page *render.Page, s *snapshot.Snapshot, o Options) {
	inWindows(page, s, o, false, func(x *snapshot.Sample) string { return render.Brief(x.Frames(), 4) })
}

// windowsByLine writes the same by the program's own lines.
func windowsByLine(page *render.Page, s *snapshot.Snapshot, o Options) {
	var samples []*snapshot.Sample
	for i := range s.Windowed {
		for j := range s.Windowed[i].Rows {
			samples = append(samples, &s.Windowed[i].Rows[j].Sample)
		}
	}
	line := innermost(ownLines(samples))
	inWindows(page, s, o, true, func(x *snapshot.Sample) string { return cmp.Or(line(x), absent("line", x)) })
}

// inWindows writes the tensors of windows, with a row for all that have the same name. The name is the
// row's line, or stands below the row.
func inWindows(page *render.Page, s *snapshot.Snapshot, o Options, inLine bool, name func(*snapshot.Sample) string) {
	of := s.Meta.Windows
	if of == nil {
		return
	}
	if len(s.Windowed) == 0 {
		page.Heading("Tensors of %s", of.String())
		page.Line("  No tensor of PyTorch's was made on a GPU in them.")
	}
	for i := range s.Windowed {
		x := &s.Windowed[i]
		rows := map[string]*snapshot.WindowedRow{}
		for j := range x.Rows {
			keyed.At(rows, name(&x.Rows[j].Sample)).Add(&x.Rows[j])
		}
		names := sorting.Keys(rows, func(a, b string) int {
			return cmp.Or(cmp.Compare(rows[b].Sample.PeakBytes, rows[a].Sample.PeakBytes), cmp.Compare(rows[b].Sample.AllocBytes, rows[a].Sample.AllocBytes), strings.Compare(a, b))
		})

		page.Heading("Tensors of %s (%d) on GPU %s: of %s", x.Process, x.PID, x.GPU, of.String())
		page.Line("  %s", render.WindowPeak(x))
		t := &table.Table{}
		for _, title := range render.WindowColumns(x) {
			t.Columns = append(t.Columns, table.TextRight(title))
		}
		add := func(name string, cells []string) { t.AddAbove([]string{name}, table.Texts(cells)...) }
		if inLine {
			t.Columns = append(t.Columns, table.Beginning("LINE"))
			add = func(name string, cells []string) { t.Add(table.Texts(append(cells, name))...) }
		}
		if x.Before != 0 {
			add(render.BeforeWindow, render.BeforeCells(x))
		}
		for _, name := range names[:o.top(len(names))] {
			add(name, render.WindowCells(x, rows[name]))
		}
		t.Text(page)
	}
}

// WindowsRows returns a row for each stack that made tensors in windows.
func WindowsRows(s *snapshot.Snapshot) *table.Table {
	t := table.New(table.Names("process", "pid", "gpu", "windows", "window_seconds", "steps", "peak_bytes", "step_bytes", "step_objects", "alloc_bytes", "alloc_objects",
		"freed_objects", "mean_life_seconds", "longest_life_seconds", "outlived_objects", "outlived_bytes", "operator", "module", "module_path", "stack")...)
	for i := range s.Windowed {
		x := &s.Windowed[i]
		head := []any{x.Process, x.PID, x.GPU, x.Windows, x.Time, x.Steps}
		if x.Before != 0 {
			t.Add(slices.Concat(head, []any{x.Before, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, render.BeforeWindow})...)
		}
		for j := range x.Rows {
			row := &x.Rows[j]
			var life, longest any
			if row.Freed > 0 {
				life, longest = row.MeanLife(), row.Longest
			}
			var stack strings.Builder
			folded(&stack, row.Sample.Frames())
			t.Add(slices.Concat(head, []any{row.Sample.PeakBytes, row.StepBytes, row.StepObjects, row.Sample.AllocBytes, row.Sample.AllocObjects,
				row.Freed, life, longest, row.Outlived, row.OutlivedBytes, row.Sample.Operator, row.Sample.Module, row.Sample.ModulePath, stack.String()})...)
		}
	}
	return t
}
