package top

import (
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/render"

	"github.com/gpumemtrace/gpumemtrace/internal/live"

	"github.com/charmbracelet/x/ansi"
)

// Styles of text. What a terminal without colours shows differs in nothing else.
var (
	styleBold   = ansi.NewStyle(ansi.AttrBold)
	styleDim    = ansi.NewStyle(ansi.AttrFaint)
	styleHeader = ansi.NewStyle(ansi.AttrBold, ansi.AttrCyanForegroundColor)
	styleUp     = ansi.NewStyle(ansi.AttrRedForegroundColor)
	styleDown   = ansi.NewStyle(ansi.AttrGreenForegroundColor)
	styleWarn   = ansi.NewStyle(ansi.AttrBold, ansi.AttrYellowForegroundColor)
	styleChosen = ansi.NewStyle(ansi.AttrReverse)
	styleBar    = ansi.NewStyle(ansi.AttrGreenForegroundColor)
)

// A cell is one field of a table: plain text and its style.
type cell struct {
	text  string
	style ansi.Style
}

// A column is one of a table.
type column struct {
	title string
	right bool      // aligned
	stack bool      // of render.Brief: it is cut where that hides least
	by    live.Sort // the order that is by this column, -1 for none
	// rank is how long the column stays when there is no room: the lowest goes first.
	rank int
	cell func(row int) cell
	// fill, of the last column, is cell for a known width.
	fill func(row, width int) cell
}

// flexible is the least width of the last column, which fills the rest of the line.
const flexible = 40

// A table is rows under a header. Its last column fills the rest of the line.
type table struct {
	columns []column
	rows    int
	of      func(row int) any // identifies a row
	// find returns the row that was chosen, -1 for none. A table without it has
	// few rows.
	find func(chosen any) int
}

// A place is where something lies on the screen, which a click may choose.
type place struct {
	x, y, width int
	list        list
	row         int       // -1 for none
	by          live.Sort // of a header, -1 for none
}

// gap is between two columns.
const gap = 2

// draw returns the lines of t, w columns wide: the header, and rows from c.first on, n
// at most. mark is put to the heading of the column that is sorted by.
func (t *table) draw(l list, w, n int, c *cursor, focused bool, by live.Sort, mark string) (lines []string, places []place) {
	last := min(c.first+n, t.rows)
	columns := t.columns
	var cells [][]cell
	var widths []int
	titles := make([]string, len(columns))
	for i := range columns {
		col := &columns[i]
		titles[i] = col.title
		if col.by >= 0 && col.by == by {
			titles[i] += mark
		}
		widest := render.Width(titles[i])
		var of []cell
		for i := c.first; i < last; i++ {
			x := col.cell(i)
			of = append(of, x)
			widest = max(widest, render.Width(x.text))
		}
		cells, widths = append(cells, of), append(widths, widest)
	}
	shown := t.room(w, widths, cells)
	if end := len(columns) - 1; columns[end].fill != nil {
		for k := range cells[end] {
			cells[end][k] = columns[end].fill(c.first+k, widths[end])
		}
	}
	var header strings.Builder
	x := 0
	for k, i := range shown {
		col := &columns[i]
		style := styleDim
		if focused {
			style = styleHeader
		}
		header.WriteString(style.Styled(render.Fit(titles[i], widths[i], col.right)))
		places = append(places, place{x: x, width: widths[i], list: l, row: -1, by: col.by})
		x += widths[i]
		if k < len(shown)-1 {
			header.WriteString(strings.Repeat(" ", gap))
			x += gap
		}
	}
	lines = append(lines, header.String())
	if t.rows == 0 && n > 0 {
		lines = append(lines, styleDim.Styled(render.Fit("none", w, false)))
	}
	for row := c.first; row < last; row++ {
		var b strings.Builder
		chosen := focused && row == c.at && t.of != nil
		for k, i := range shown {
			one := cells[i][row-c.first]
			if columns[i].stack {
				one.text = render.ShortenStack(one.text, widths[i])
			}
			text := render.Fit(one.text, widths[i], columns[i].right)
			if !chosen {
				text = one.style.Styled(text)
			}
			b.WriteString(text)
			if k < len(shown)-1 {
				b.WriteString(strings.Repeat(" ", gap))
			}
		}
		text := b.String()
		if chosen {
			text = styleChosen.Styled(text)
		}
		places = append(places, place{y: len(lines), width: w, list: l, row: row, by: -1})
		lines = append(lines, text)
	}
	return lines, places
}

// room returns the columns that w has room for, and sets the last one's width. What is
// empty in every row is left out.
func (t *table) room(w int, widths []int, cells [][]cell) (shown []int) {
	flex := len(widths) - 1
	for i := range widths {
		empty := i != flex
		for _, x := range cells[i] {
			empty = empty && x.text == ""
		}
		if !empty {
			shown = append(shown, i)
		}
	}
	for {
		left := w
		for _, i := range shown[:len(shown)-1] {
			left -= widths[i] + gap
		}
		if left >= min(flexible, widths[flex]) || len(shown) == 1 {
			widths[flex] = max(left, 0)
			return shown
		}
		drop := 0
		for k, i := range shown[:len(shown)-1] {
			if t.columns[i].rank < t.columns[shown[drop]].rank {
				drop = k
			}
		}
		shown = append(shown[:drop:drop], shown[drop+1:]...)
	}
}
