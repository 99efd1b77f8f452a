package export

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// noSteps says why there may be none.
var noSteps = []string{
	"None were seen: no step of a PyTorch optimizer made a tensor on a GPU,",
	"or the trace did not look for all tensors (--tensors).",
}

// StepsReport writes the training steps of s: of each process on each GPU the last
// ones (o.Top of them, 10 by default), what all came to, and the stacks that grew. With
// o.Before they are those that began after it.
func StepsReport(w io.Writer, s *snapshot.Snapshot, o Options) error {
	page := render.NewPage(w, o.Width, o.Color)
	liveTitle(page, &s.Meta)
	if o.Before != nil {
		page.Line("Steps that began between %v and %v after the trace did", o.Before.Meta.Duration, s.Meta.Duration)
	}
	shown := false
	for i := range s.Steps {
		if x := &s.Steps[i]; x.Begun {
			shown = true
			stepsOf(page, x, o)
		}
	}
	if !shown {
		page.Heading("Steps")
		for _, line := range noSteps {
			page.Line("  %s", line)
		}
	}
	losses(page, s)
	return page.Flush("write steps")
}

func stepsOf(page *render.Page, x *snapshot.Steps, o Options) {
	last := x.Last[len(x.Last)-o.top(len(x.Last)):]
	page.Heading("%s (%d) on GPU %s: %s steps", x.Process, x.PID, x.GPU, bytefmt.Count(x.Seen))
	if x.Unsure > 0 {
		page.Warn("  %s more are left out: each may have been several", bytefmt.Count(x.Unsure))
	}
	if x.Seen == 0 {
		page.Line("  An optimizer's step was called, and not again yet.")
		return
	}
	var rows []render.Row
	row := func(name, took string, m *snapshot.Moved) {
		rows = append(rows, render.Row{Cells: []string{name, took, bytefmt.Format(m.AllocBytes), bytefmt.Count(m.AllocObjects),
			bytefmt.Format(m.FreedBytes), bytefmt.Count(m.FreedObjects), signed(m.Net()), bytefmt.Format(m.PeakBytes), bytefmt.Format(m.InuseBytes)}})
	}
	for i := range last {
		row(strconv.FormatInt(last[i].Number, 10), last[i].Took.Round(10*time.Microsecond).String(), &last[i].Moved)
	}
	row("all", "", &x.Total)
	page.Table([]string{">STEP", ">TOOK", ">ALLOCATED", ">CALLS", ">FREED", ">FREES", ">NET", ">PEAK", ">AT END"}, rows)
	if x.Over == 0 {
		return
	}
	page.Line("")
	among := ""
	if x.Gained != x.Grown {
		among = fmt.Sprintf(" (%s at some stacks, %s at others)", signed(x.Gained), signed(x.Grown-x.Gained))
	}
	page.Line("  Grown over %d steps: %s%s", x.Over, signed(x.Grown), among)
	grew := x.Grew[:o.top(len(x.Grew))]
	rows = nil
	for _, g := range grew {
		rows = append(rows, render.Row{Cells: []string{signed(g.Bytes), signed(g.Bytes / x.Over), g.Sample.Operator, g.Sample.Module},
			Below: []string{render.Telling(g.Sample.Frames(), 4)}})
	}
	if len(rows) > 0 {
		page.Table([]string{">GREW BY", ">A STEP", "OPERATOR", "MODULE"}, rows)
	}
}

// signed is bytefmt.Format, with a sign for what became more.
func signed(n int64) string {
	if n > 0 {
		return "+" + bytefmt.Format(n)
	}
	return bytefmt.Format(n)
}

// StepsCSV writes a row for each step that is kept, in order, with times in seconds
// since 1970 and bytes.
func StepsCSV(w io.Writer, s *snapshot.Snapshot) error {
	rows := [][]string{{"process", "pid", "gpu", "step", "begin", "seconds", "alloc_bytes", "alloc_objects", "freed_bytes", "freed_objects", "net_bytes", "peak_bytes", "inuse_bytes"}}
	for i := range s.Steps {
		x := &s.Steps[i]
		for j := range x.Last {
			one := &x.Last[j]
			row := []string{cell(x.Process), strconv.Itoa(x.PID), cell(x.GPU), strconv.FormatInt(one.Number, 10),
				fmt.Sprintf("%d.%09d", one.Begin.Unix(), one.Begin.Nanosecond()), fmt.Sprintf("%.9f", one.Took.Seconds())}
			for _, n := range []int64{one.AllocBytes, one.AllocObjects, one.FreedBytes, one.FreedObjects, one.Net(), one.PeakBytes, one.InuseBytes} {
				row = append(row, strconv.FormatInt(n, 10))
			}
			rows = append(rows, row)
		}
	}
	if err := csv.NewWriter(w).WriteAll(rows); err != nil {
		return fmt.Errorf("write csv: %w", err)
	}
	return nil
}
