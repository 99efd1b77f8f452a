package timeline

import (
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/output/web"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

// The page has the tensors that were seen in windows, each with its stack, and says of which windows they
// are. A recording without windows has no such part.
func TestWindows(t *testing.T) {
	html, _, _ := written(t, recordtest.Windowed(t), whole)
	b := open(t, html, 1300, 900)
	b.Wants("windows", b.Text("windowed"), "Tensors of train (17) on GPU cuda:0: of 1 window of 2s, one each 1m", "40.0 MiB", "[tensors from before the window]",
		"12.0 MiB", "ALLOCATED A SECOND", "No window had a whole training step")
	b.Run(chromedp.Click("#windowed summary"))
	b.Wants("its stack", b.Text("windowed"), "forward train.py:7")
	b.Wants("what was live", b.Text("table"), "64.0 MiB")

	_, p, _ := written(t, "../../../test/recordings/profiler.gmt", whole)
	if p.meta.Windowed != nil {
		t.Errorf("a trace without windows has %+v", p.meta.Windowed)
	}
}

// Of many stacks the page has those that held most.
func TestManyWindowedStacks(t *testing.T) {
	s := snapshottest.Windowed()
	for len(s.Windowed[0].Rows) < maxWindowed+5 {
		s.Windowed[0].Rows = append(s.Windowed[0].Rows, s.Windowed[0].Rows[1])
	}
	d := &document{w: &run{lost: loss.New(causes)}, meta: meta{Stacks: web.NewStacks(maxNodes)}, totals: render.Index[string]{}, byText: render.Index[string]{}}
	d.windowed(s)
	if m := d.meta.Windowed; len(m[0].Rows) != maxWindowed+1 || m[0].LeftOut != 5 || len(m[1].Rows) != 0 || m[1].LeftOut != 1 {
		t.Errorf("%d rows and %d more, then %d and %d", len(m[0].Rows), m[0].LeftOut, len(m[1].Rows), m[1].LeftOut)
	}
}
