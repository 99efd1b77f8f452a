package render

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

// DefaultWidth is the width of a page when none is given, in columns.
const DefaultWidth = 100

// A Page writes headings, paragraphs and tables of cleaned text, of a width: paragraphs
// go on in further lines, others are cut. Only Flush fails, with the first error.
type Page struct {
	w     *bufio.Writer
	width int // of paragraphs
	rows  int // of tables
	color bool
	begun bool
}

// NewPage returns a page width columns wide (0 for DefaultWidth), with ANSI
// colours when color is set. With Whole, paragraphs are as wide as by default, and no line
// of a table is cut.
func NewPage(w io.Writer, width int, color bool) *Page {
	p := &Page{w: bufio.NewWriter(w), width: width, rows: width, color: color}
	if width <= 0 {
		p.width, p.rows = DefaultWidth, DefaultWidth
	}
	if width == Whole {
		p.rows = math.MaxInt32
	}
	return p
}

// Whole is the width of a page that a program reads, or a file.
const Whole = -1

// Flush writes the rest of the page. what begins its error: "write table".
func (p *Page) Flush(what string) error {
	if err := p.w.Flush(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// Heading begins a section, after an empty line.
func (p *Page) Heading(format string, args ...any) {
	if p.begun {
		p.w.WriteByte('\n')
	}
	p.styled("1", Shorten(Clean(fmt.Sprintf(format, args...)), p.width))
}

// Line writes a paragraph, as a rule of one line.
func (p *Page) Line(format string, args ...any) {
	p.paragraph("", fmt.Sprintf(format, args...))
}

// Warn writes a paragraph that must not be overlooked.
func (p *Page) Warn(format string, args ...any) {
	p.paragraph("33", fmt.Sprintf(format, args...))
}

// Verbatim writes one line whole, however long, such as a command to copy.
func (p *Page) Verbatim(s string) { p.styled("", Clean(s)) }

func (p *Page) paragraph(sgr, s string) {
	for _, line := range Wrap(Clean(s), p.width, 2) {
		p.styled(sgr, line)
	}
}

// Losses writes the counters that are not zero, and notes.
func (p *Page) Losses(lost []loss.Counter, notes []string) {
	lost = slices.DeleteFunc(loss.Shown(lost), func(c loss.Counter) bool { return c.Value == 0 })
	if len(lost) > 0 {
		p.Heading("Lost")
	}
	for _, c := range lost {
		p.Warn("  %d %s (%s)", c.Value, c.Help, c.Name)
	}
	if len(notes) > 0 {
		p.Heading("Notes")
	}
	for _, n := range notes {
		p.Line("  %s", strings.TrimSpace(n))
	}
}

// row writes one line, cut to the page.
func (p *Page) row(s string) { p.styled("", Shorten(Clean(s), p.rows)) }

// styled writes one line of cleaned text.
func (p *Page) styled(sgr, s string) {
	p.begun = true
	if p.color && sgr != "" {
		s = "\x1b[" + sgr + "m" + s + "\x1b[0m"
	}
	p.w.WriteString(s)
	p.w.WriteByte('\n')
}

// A Row is the cells of one line of a table, and lines to write under it.
type Row struct {
	Cells []string
	Below []string // indented
}

// Table writes rows under their header. Columns are as wide as their widest
// cell; those whose header begins with ">" are aligned right. Where the table is
// wider than the page, columns whose header begins with "<" or "|" become narrower, the widest
// first: with "<" their texts lose the beginning, because the end says more, and with "|" the
// end. Empty columns are left out.
func (p *Page) Table(header []string, rows []Row) {
	widths := make([]int, len(header))
	right := make([]bool, len(header))
	shorten := make([]func(string, int) string, len(header))
	var yielding []int
	for i, h := range header {
		header[i], right[i] = strings.CutPrefix(h, ">")
		shorten[i] = ShortenLeft
		if h != "" && strings.ContainsRune("<|", rune(h[0])) {
			header[i], yielding = h[1:], append(yielding, i)
		}
		if strings.HasPrefix(h, "|") {
			shorten[i] = Shorten
		}
	}
	for _, r := range rows {
		for i, c := range r.Cells {
			r.Cells[i] = Clean(c)
			widths[i] = max(widths[i], Width(r.Cells[i]))
		}
	}
	for i := range widths {
		if widths[i] > 0 {
			widths[i] = max(widths[i], Width(header[i]))
		}
	}
	p.fit(widths, yielding)
	line := func(cells []string) string {
		var b strings.Builder
		for i, c := range cells {
			width := widths[i]
			if width == 0 {
				continue
			}
			b.WriteString("  " + Fit(shorten[i](c, width), width, right[i]))
		}
		return strings.TrimRight(b.String(), " ")
	}
	p.styled("2", Shorten(Clean(line(header)), p.rows))
	for _, r := range rows {
		p.row(line(r.Cells))
		for _, below := range r.Below {
			p.row("      " + below)
		}
	}
}

// fit narrows columns, those of yielding, until the table is no wider than the page.
func (p *Page) fit(widths, yielding []int) {
	const least = 10
	excess := -p.rows
	for _, w := range widths {
		if w > 0 {
			excess += w + len("  ")
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
