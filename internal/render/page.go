package render

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// DefaultWidth is the width of a page when none is given, in columns.
const DefaultWidth = 100

// A Page writes headings, paragraphs and tables of cleaned text, of a width: paragraphs
// go on in further lines, others are cut. Only Flush fails, with the first error.
type Page struct {
	w     *bufio.Writer
	width int
	color bool
	begun bool
}

// NewPage returns a page width columns wide (0 for DefaultWidth), with ANSI
// colours when color is set.
func NewPage(w io.Writer, width int, color bool) *Page {
	if width <= 0 {
		width = DefaultWidth
	}
	return &Page{w: bufio.NewWriter(w), width: width, color: color}
}

// Flush writes what is buffered. Its error begins with what: "write table".
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
	p.styled("1", cut(Clean(fmt.Sprintf(format, args...)), p.width))
}

// Line writes a paragraph, as a rule of one line.
func (p *Page) Line(format string, args ...any) {
	p.paragraph("", fmt.Sprintf(format, args...))
}

// Warn writes a paragraph that must not be overlooked.
func (p *Page) Warn(format string, args ...any) {
	p.paragraph("33", fmt.Sprintf(format, args...))
}

func (p *Page) paragraph(sgr, s string) {
	for _, line := range wrap(Clean(s), p.width) {
		p.styled(sgr, line)
	}
}

// row writes one line, cut to the page.
func (p *Page) row(s string) { p.styled("", cut(Clean(s), p.width)) }

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
// wider than the page those whose header begins with "<" give way, the widest
// first: what has names that end in what tells most, such as a line, loses its
// beginning. Empty columns are left out.
func (p *Page) Table(header []string, rows []Row) {
	widths := make([]int, len(header))
	right := make([]bool, len(header))
	var yielding []int
	for i, h := range header {
		header[i], right[i] = strings.CutPrefix(h, ">")
		if name, ok := strings.CutPrefix(h, "<"); ok {
			header[i], yielding = name, append(yielding, i)
		}
	}
	for _, r := range rows {
		for i, c := range r.Cells {
			r.Cells[i] = Clean(c)
			widths[i] = max(widths[i], utf8.RuneCountInString(r.Cells[i]))
		}
	}
	for i := range widths {
		if widths[i] > 0 {
			widths[i] = max(widths[i], utf8.RuneCountInString(header[i]))
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
			c = cutFront(c, width)
			pad := strings.Repeat(" ", width-utf8.RuneCountInString(c))
			b.WriteString("  ")
			if right[i] {
				b.WriteString(pad + c)
			} else {
				b.WriteString(c + pad)
			}
		}
		return strings.TrimRight(b.String(), " ")
	}
	p.styled("2", cut(Clean(line(header)), p.width))
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
	excess := -p.width
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

// cutFront returns s cut to width runes, the first of which is then "…".
func cutFront(s string, width int) string {
	n := utf8.RuneCountInString(s)
	if n <= width {
		return s
	}
	return "…" + string([]rune(s)[n-width+1:])
}

// wrap returns s in lines of width runes at most, broken at spaces where it can be. The
// second and further ones are indented by two more than the first.
func wrap(s string, width int) (lines []string) {
	runes := []rune(s)
	indent := 0
	for indent < len(runes) && runes[indent] == ' ' {
		indent++
	}
	prefix, rest := runes[:indent], runes[indent:]
	further := []rune(strings.Repeat(" ", min(indent+2, width/2)))
	for len(prefix)+len(rest) > width {
		room := max(width-len(prefix), 0)
		end := room
		for end > 0 && rest[end] != ' ' {
			end--
		}
		if end == 0 { // one word
			end = room
		}
		lines = append(lines, string(prefix)+string(rest[:end]))
		for rest = rest[end:]; len(rest) > 0 && rest[0] == ' '; {
			rest = rest[1:]
		}
		prefix = further
	}
	return append(lines, string(prefix)+string(rest))
}

// cut returns s cut to width runes, the last of which is then "…".
func cut(s string, width int) string {
	if utf8.RuneCountInString(s) <= width {
		return s
	}
	runes := []rune(s)
	return string(runes[:max(width-1, 0)]) + "…"
}
