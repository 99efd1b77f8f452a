package table

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// text returns a cell for people.
func (c *Column) text(cell any) string {
	switch x := cell.(type) {
	case nil:
		return ""
	case string:
		return render.Clean(x)
	case int:
		return c.text(int64(x))
	case int64:
		return c.figure(x)
	case Part:
		return bytefmt.Percent(x.Of, x.Whole)
	}
	return fmt.Sprint(cell)
}

func (c *Column) figure(n int64) string {
	text := bytefmt.Count(n)
	if c.bytes {
		text = bytefmt.Format(n)
	}
	switch {
	case n == 0 && c.Some:
		return ""
	case n > 0 && c.Signed:
		return "+" + text
	}
	return text
}

// Text writes the table to a page. Columns are as wide as their widest cell, and empty ones are left
// out. Numbers are aligned right. Where the table is wider than the page, columns of Ending and
// Beginning become narrower, the widest first.
func (t *Table) Text(p *render.Page) {
	titles, rows := t.texts()
	widths := make([]int, len(t.Columns))
	for _, row := range rows {
		for j, text := range row {
			widths[j] = max(widths[j], render.Width(text))
		}
	}
	for i, title := range titles {
		if widths[i] > 0 {
			widths[i] = max(widths[i], render.Width(title))
		}
	}
	t.fit(widths, p.Columns())
	p.TableHeader(t.line(titles, widths))
	for i, row := range rows {
		p.TableLine(t.line(row, widths))
		for _, below := range t.Rows[i].Below {
			p.TableLine("      " + below)
		}
	}
}

// texts returns the titles of the columns, and the cells of the rows, as people read them.
func (t *Table) texts() (titles []string, rows [][]string) {
	for _, c := range t.Columns {
		titles = append(titles, render.Clean(c.Title))
	}
	for _, row := range t.Rows {
		texts := make([]string, len(row.Cells))
		for j, cell := range row.Cells {
			texts[j] = t.Columns[j].text(cell)
		}
		rows = append(rows, texts)
	}
	return titles, rows
}

// A Listing is a table as a page of a browser has it. The first columns are Numbers.
type Listing struct {
	Title   string     `json:"title"`
	Columns []string   `json:"columns"`
	Cells   [][]string `json:"cells"`
	Numbers int        `json:"numbers"`
}

// Listing returns the table as text.
func (t *Table) Listing(title string) Listing {
	titles, rows := t.texts()
	numbers := slices.IndexFunc(t.Columns, func(c Column) bool { return !c.right })
	if numbers < 0 {
		numbers = len(t.Columns)
	}
	return Listing{title, titles, rows, numbers}
}

// line returns the cells of a row beside each other.
func (t *Table) line(cells []string, widths []int) string {
	var b strings.Builder
	for i, text := range cells {
		if widths[i] == 0 {
			continue
		}
		if yields := t.Columns[i].yields; yields != nil {
			text = yields(text, widths[i])
		}
		b.WriteString("  " + render.Fit(text, widths[i], t.Columns[i].right))
	}
	return strings.TrimRight(b.String(), " ")
}

// fit narrows columns until the table is no wider than the page.
func (t *Table) fit(widths []int, page int) {
	const least = 10
	excess := -page
	var yielding []int
	for i, w := range widths {
		if w > 0 {
			excess += w + len("  ")
		}
		if t.Columns[i].yields != nil {
			yielding = append(yielding, i)
		}
	}
	for ; excess > 0 && len(yielding) > 0; excess-- {
		widest := slices.MaxFunc(yielding, func(a, b int) int { return cmp.Compare(widths[a], widths[b]) })
		if widths[widest] <= least {
			return
		}
		widths[widest]--
	}
}
