package export

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// WindowsReport writes the tensors that s saw in windows: for each process and GPU a row for each
// stack (o.Top of them, 10 by default), those that held most at the peak of a step first.
func WindowsReport(w io.Writer, s *snapshot.Snapshot, o Options) error {
	page := render.NewPage(w, o.Width, o.Color)
	liveTitle(page, &s.Meta)
	inWindows(page, s, o, "", func(x *snapshot.WindowedRow) string { return render.Brief(x.Sample.Frames(), 4) })
	page.Losses(s.Loss, s.Notes)
	return page.Flush("write windows")
}

// windowsByLine writes the same by the program's own lines.
func windowsByLine(page *render.Page, s *snapshot.Snapshot, o Options) {
	var samples []*snapshot.Sample
	for i := range s.Windowed {
		for j := range s.Windowed[i].Rows {
			samples = append(samples, &s.Windowed[i].Rows[j].Sample)
		}
	}
	all, _ := ownLines(samples)
	line := innermost(all)
	inWindows(page, s, o, "|LINE", func(x *snapshot.WindowedRow) string { return cmp.Or(line(&x.Sample), absent("line", &x.Sample)) })
}

// inWindows writes the tensors of windows, with a row for all that have the same name. column is the
// title of the names, "" to write each below its row.
func inWindows(page *render.Page, s *snapshot.Snapshot, o Options, column string, name func(*snapshot.WindowedRow) string) {
	if s.Meta.Windows == nil {
		return
	}
	if len(s.Windowed) == 0 {
		page.Heading("Tensors of %s", render.Windows(s.Meta.Windows))
		page.Line("  No tensor of PyTorch's was made on a GPU in them.")
	}
	for i := range s.Windowed {
		x := &s.Windowed[i]
		rows := map[string]*snapshot.WindowedRow{}
		var names []string
		for j := range x.Rows {
			row := &x.Rows[j]
			k := name(row)
			if rows[k] == nil {
				rows[k] = &snapshot.WindowedRow{}
				names = append(names, k)
			}
			rows[k].Add(row)
		}
		slices.SortFunc(names, func(a, b string) int {
			return cmp.Or(cmp.Compare(rows[b].Sample.PeakBytes, rows[a].Sample.PeakBytes), cmp.Compare(rows[b].Sample.AllocBytes, rows[a].Sample.AllocBytes), strings.Compare(a, b))
		})
		names = names[:o.top(len(names))]
		page.Windows(s.Meta.Windows, x, column, names, func(i int) *snapshot.WindowedRow { return rows[names[i]] })
	}
}

// WindowsRows writes a row for each stack that made tensors in windows, with times in seconds, and
// bytes.
func WindowsRows(w io.Writer, s *snapshot.Snapshot, format RowFormat) error {
	t := sheet{columns: []string{"process", "pid", "gpu", "windows", "window_seconds", "steps", "peak_bytes", "step_bytes", "step_objects", "alloc_bytes", "alloc_objects",
		"freed_objects", "mean_life_seconds", "longest_life_seconds", "outlived_objects", "outlived_bytes", "operator", "module", "module_path", "stack"}}
	seconds := func(d time.Duration) json.Number { return json.Number(fmt.Sprintf("%.9f", d.Seconds())) }
	for i := range s.Windowed {
		x := &s.Windowed[i]
		head := []any{x.Process, int64(x.PID), x.GPU, x.Windows, seconds(x.Time), x.Steps}
		if x.Before != 0 {
			t.rows = append(t.rows, slices.Concat(head, []any{x.Before, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, render.BeforeWindow}))
		}
		for j := range x.Rows {
			row := &x.Rows[j]
			var life, longest any
			if row.Freed > 0 {
				life, longest = seconds(row.Life), seconds(row.Longest)
			}
			var stack strings.Builder
			folded(&stack, row.Sample.Frames())
			t.rows = append(t.rows, slices.Concat(head, []any{row.Sample.PeakBytes, row.StepBytes, row.StepObjects, row.Sample.AllocBytes, row.Sample.AllocObjects,
				row.Freed, life, longest, row.Outlived, row.OutlivedBytes, row.Sample.Operator, row.Sample.Module, row.Sample.ModulePath, stack.String()}))
		}
	}
	return t.write(w, format)
}
