package export

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/table"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// noSteps says why a snapshot has no steps.
func noSteps(s *snapshot.Snapshot) string {
	if s.Meta.Windows != nil {
		return "No step was seen in " + s.Meta.Windows.String() + "."
	}
	if len(s.Allocators) == 0 && !slices.ContainsFunc(s.Samples, func(x snapshot.Sample) bool { return x.Owner == "pytorch" || x.Owner == snapshot.NotNamed }) {
		return "No steps are known: they are those of PyTorch's optimizers, and nothing here is of PyTorch. --leaks shows what grows in any program."
	}
	if len(s.Allocators) == 0 {
		return "No steps are known, because this recording has no tensors. Record with --tensors."
	}
	return "No step of a PyTorch optimizer made a tensor on a GPU, and nothing clipped gradients."
}

// StepsReport writes the training steps of s: for each process and GPU the last steps (o.Top
// of them, 10 by default), their sum, and the stacks that grew. With o.Before these are the
// steps that began after it.
func StepsReport(w io.Writer, s *snapshot.Snapshot, o Options) error {
	s = s.ByRank()
	page := render.NewPage(w, o.Width, o.Color)
	page.Heading("Training steps of %s", render.Target(s))
	if o.Before != nil {
		page.Line("Steps that began between %v and %v after the beginning of the trace", o.Before.Meta.Duration, s.Meta.Duration)
	}
	if s.Meta.Windows != nil {
		page.Line("Steps of %s: what happened between them was not seen", s.Meta.Windows.String())
	}
	shown := false
	for i := range s.Steps {
		if x := &s.Steps[i]; x.Begun {
			shown = true
			stepsOf(page, x, s.Meta.Start, o)
		}
	}
	if !shown {
		page.Heading("Steps")
		page.Line("  %s", noSteps(s))
	}
	page.Losses(loss.Telling(s.Loss), nil)
	about(page, s.Notes)
	if o.File != "" && o.Before == nil {
		nextCommands(page, []Command{{"report " + o.File + " --leaks", "Which stacks leak"}, thePage(o.File), theWords})
	}
	return page.Flush("write steps")
}

// stepsOf writes the steps of a process on a GPU. BEGAN is a moment as --at takes it: after start, when the
// trace began.
func stepsOf(page *render.Page, x *snapshot.Steps, start time.Time, o Options) {
	last := x.Last[len(x.Last)-o.top(len(x.Last)):]
	shown := ""
	if len(last) < int(x.Seen) {
		shown = fmt.Sprintf(", the last %d (-n)", len(last))
	}
	page.Heading("%s (%d) on GPU %s: %s steps%s", x.Process, x.PID, x.GPU, bytefmt.Count(x.Seen), shown)
	if x.Unsure > 0 {
		page.Warn("  %s more steps are left out, because each may have been several steps", bytefmt.Count(x.Unsure))
	}
	if x.Seen == 0 {
		page.Line("  A training step began, and has not ended yet.")
		return
	}
	t := table.New(table.TextRight("STEP"), table.TextRight("BEGAN"), table.TextRight("TOOK"), table.Bytes("ALLOCATED"), table.Count("CALLS"), table.Bytes("FREED"),
		table.Count("FREES"), table.SignedBytes("NET"), table.Bytes("AT PEAK"), table.Bytes("AT END"))
	row := func(name, began, took any, m *snapshot.Moved) {
		t.Add(name, began, took, m.AllocBytes, m.AllocObjects, m.FreedBytes, m.FreedObjects, m.Net(), m.PeakBytes, m.InuseBytes)
	}
	for i := range last {
		row(last[i].Number, last[i].Begin.Sub(start).Round(time.Millisecond), last[i].Took.Round(10*time.Microsecond), &last[i].Moved)
	}
	row("all", nil, nil, &x.Total)
	if text := verdict(x.Last); text != "" { // the answer comes first
		page.Line("  %s", text)
	}
	page.Line("  A step needed up to %s in tensors at once.", bytefmt.Format(x.Total.PeakBytes))
	t.Text(page)
	page.Line("")
	if x.Over == 0 {
		return
	}
	among := ""
	if x.Gained != x.Grown {
		among = fmt.Sprintf(" (%s at some stacks, %s at others)", bytefmt.Signed(x.Gained), bytefmt.Signed(x.Grown-x.Gained))
	}
	page.Line("  Grown in %d steps, what is made only once included: %s%s", x.Over, bytefmt.Signed(x.Grown), among)
	grew := table.New(table.SignedBytes("GREW BY"), table.Text("OPERATOR"), table.Text("MODULE"))
	for _, g := range x.Grew[:o.top(len(x.Grew))] {
		grew.AddAbove([]string{render.Brief(g.Sample.Frames(), 4)}, g.Bytes, g.Sample.Operator, g.Sample.Module)
	}
	if len(grew.Rows) > 0 {
		grew.Text(page)
	}
}

// verdict says whether memory grows from step to step: in the later half of the steps that are
// known, so that what is made once, such as an optimizer's state, is no growth. It is empty
// where there are too few steps.
func verdict(steps []snapshot.Step) string {
	const fewest = 4
	if len(steps) < fewest {
		return ""
	}
	late := steps[len(steps)/2:]
	var net int64
	grew := 0
	for i := range late {
		net += late[i].Net()
		if late[i].Net() > 0 {
			grew++
		}
	}
	which := fmt.Sprintf("steps %d to %d", late[0].Number, late[len(late)-1].Number)
	switch {
	case net <= 0:
		return fmt.Sprintf("Nothing leaks from step to step: %s freed what they allocated, or more.", which)
	case grew == len(late):
		return fmt.Sprintf("Memory grows: each of %s allocated more than it freed, on average by %s a step.", which, bytefmt.Format(net/int64(len(late))))
	}
	return fmt.Sprintf("It grew by %s over %s, but not in each step.", bytefmt.Format(net), which)
}

// StepsRows returns a row for each step that s has, in order.
func StepsRows(s *snapshot.Snapshot) *table.Table {
	t := table.New(table.Names("process", "pid", "gpu", "step", "begin", "seconds", "alloc_bytes", "alloc_objects", "freed_bytes", "freed_objects", "net_bytes", "peak_bytes", "inuse_bytes")...)
	for i := range s.Steps {
		x := &s.Steps[i]
		for j := range x.Last {
			one := &x.Last[j]
			t.Add(x.Process, x.PID, x.GPU, one.Number, one.Begin, one.Took,
				one.AllocBytes, one.AllocObjects, one.FreedBytes, one.FreedObjects, one.Net(), one.PeakBytes, one.InuseBytes)
		}
	}
	return t
}
