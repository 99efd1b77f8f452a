package render

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

// DefaultWidth is the width of a page when none is given, in columns.
const DefaultWidth = 100

// A Page writes headings, paragraphs and lines of tables, and cleans their text. A paragraph that
// is wider than the page goes on in further lines, anything else is cut. Only Flush fails, with
// the first error.
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
		if c.Value == 1 {
			p.Warn("  %s: 1 (%s)", c.Help, c.Name) // the help is in the plural
		} else {
			p.Warn("  %d %s (%s)", c.Value, c.Help, c.Name)
		}
	}
	if len(notes) > 0 {
		p.Heading("Notes")
	}
	for _, n := range notes {
		p.Line("  %s", strings.TrimSpace(n))
	}
}

// Columns is how wide a table may be.
func (p *Page) Columns() int { return p.rows }

// TableHeader writes the titles of a table.
func (p *Page) TableHeader(s string) { p.styled("2", Shorten(Clean(s), p.rows)) }

// TableLine writes a line of a table, cut to the page.
func (p *Page) TableLine(s string) { p.styled("", Shorten(Clean(s), p.rows)) }

// styled writes one line of cleaned text.
func (p *Page) styled(sgr, s string) {
	p.begun = true
	if p.color && sgr != "" {
		s = "\x1b[" + sgr + "m" + s + "\x1b[0m"
	}
	p.w.WriteString(s)
	p.w.WriteByte('\n')
}
