package server

import (
	"fmt"

	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/html"
	"github.com/gpumemtrace/gpumemtrace/internal/output/web"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// shownWindowed bounds the processes whose tensors in windows are shown.
const shownWindowed = 10

// A windowedView has the tensors of a process that were seen in windows.
type windowedView struct {
	Title, Windows, About string
	Columns               []string
	Rows                  []windowedRow
}

type windowedRow struct {
	Cells      []string
	Title, Key string
	Frames     []string
}

// windowedViews returns the tensors of the chosen processes that were seen in windows.
func windowedViews(p *live.Status, c *chosen) (out []windowedView) {
	for i := range p.Windowed {
		x := &p.Windowed[i]
		if len(out) == shownWindowed || !c.has(&snapshot.Labels{PID: x.PID, GPU: x.GPU}) {
			continue
		}
		v := windowedView{Title: processName(x.Process, x.PID) + " on GPU " + web.Clean(x.GPU), Windows: p.Meta.Windows.String(), About: render.WindowPeak(x), Columns: render.WindowColumns(x)}
		if x.Before != 0 {
			v.Rows = append(v.Rows, windowedRow{Cells: render.BeforeCells(x), Title: render.BeforeWindow})
		}
		for j := range x.Rows[:min(len(x.Rows), shownStacks)] {
			r := &x.Rows[j]
			v.Rows = append(v.Rows, windowedRow{Cells: render.WindowCells(x, r), Title: web.Clean(render.Brief(r.Sample.Frames(), 3)),
				Key: fmt.Sprint("window ", i, " ", j), Frames: render.Frames(r.Sample.Frames(), shownFrames, web.Clean)})
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
				html.THead(html.Tr(cellsOf(x.Columns, headCell), headCell("", "STACK"))),
				html.TBody(html.Each(x.Rows, windowRow)),
			)),
		)
	})
}

// cellsOf makes a cell of each text. A narrow screen has the first two.
func cellsOf(texts []string, cell func(class, text string) html.Node) html.Node {
	n := 0
	return html.Each(texts, func(text string) html.Node {
		if n++; n <= 2 {
			return cell("n", text)
		}
		return cell("n wide", text)
	})
}

func windowRow(x windowedRow) html.Node {
	stack := html.Text(x.Title)
	if len(x.Frames) > 0 {
		stack = html.Details(html.DataKey(x.Key), html.Summary(html.Text(x.Title)), html.Ol(list(x.Frames)))
	}
	return html.Tr(cellsOf(x.Cells, rowCell), html.Td(html.Class("s"), stack))
}
