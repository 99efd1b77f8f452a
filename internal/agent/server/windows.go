package server

import (
	"fmt"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/export"
	"github.com/gpumemtrace/gpumemtrace/internal/output/html"
	"github.com/gpumemtrace/gpumemtrace/internal/output/web"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// shownWindowed bounds the processes whose tensors in windows are shown.
const shownWindowed = 10

// A windowedView has the tensors of a process that were seen in windows.
type windowedView struct {
	Title, Windows, About string
	Per                   string // what ALLOCATED and TENSORS are for
	Rows                  []windowedRow
}

type windowedRow struct {
	Peak, Allocated, Tensors, Lived, Title, Key string
	Frames                                      []string
}

// windowedViews returns the tensors of the chosen processes that were seen in windows.
func windowedViews(p *live.Status, c *chosen) (out []windowedView) {
	for i := range p.Windowed {
		x := &p.Windowed[i]
		if len(out) == shownWindowed || !c.has(&snapshot.Labels{PID: x.PID, GPU: x.GPU}) {
			continue
		}
		v := windowedView{Title: processName(x.Process, x.PID) + " on GPU " + web.Clean(x.GPU), Windows: render.Windows(p.Meta.Windows), About: export.WindowPeak(x), Per: x.Per()}
		if x.Before != 0 {
			v.Rows = append(v.Rows, windowedRow{Peak: bytefmt.Format(x.Before), Title: export.BeforeWindow})
		}
		for j := range x.Rows[:min(len(x.Rows), shownStacks)] {
			r := &x.Rows[j]
			bytes, objects := x.Share(r)
			row := windowedRow{Peak: bytefmt.Format(r.Sample.PeakBytes), Allocated: bytefmt.Format(int64(bytes)), Tensors: fmt.Sprintf("%.1f", objects),
				Title: web.Clean(render.Brief(r.Sample.Frames(), 3)), Key: fmt.Sprint("window ", i, " ", j), Frames: render.Frames(r.Sample.Frames(), shownFrames, web.Clean)}
			if r.Freed > 0 {
				row.Lived = r.Life.Round(10 * time.Microsecond).String()
			}
			v.Rows = append(v.Rows, row)
		}
		out = append(out, v)
	}
	return out
}

// windowsPart is absent without windows.
func windowsPart(v *view) html.Node {
	return html.Each(v.Windowed, func(x windowedView) html.Node {
		return section("Tensors of "+x.Title,
			html.H2(html.Text("Tensors of "+x.Title+" "), quiet("of "+x.Windows)),
			quietLine(x.About),
			html.Div(html.Class("scroll"), html.Table(html.Class("rows"),
				html.THead(html.Tr(headCell("n", "AT PEAK"), headCell("n", "ALLOCATED A "+x.Per), headCell("n wide", "TENSORS A "+x.Per), headCell("n wide", "LIVED"), headCell("", "STACK"))),
				html.TBody(html.Each(x.Rows, windowRow)),
			)),
		)
	})
}

func windowRow(x windowedRow) html.Node {
	stack := html.Text(x.Title)
	if len(x.Frames) > 0 {
		stack = html.Details(html.DataKey(x.Key), html.Summary(html.Text(x.Title)), html.Ol(list(x.Frames)))
	}
	return html.Tr(rowCell("n", x.Peak), rowCell("n", x.Allocated), rowCell("n wide", x.Tensors), rowCell("n wide", x.Lived), html.Td(html.Class("s"), stack))
}
