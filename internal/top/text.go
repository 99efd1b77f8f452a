package top

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/charmbracelet/x/ansi"
	"github.com/mattn/go-runewidth"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// cells knows how many columns of a terminal a character takes: the same wherever it is
// run.
var cells = &runewidth.Condition{StrictEmojiNeutral: true}

// maxName bounds the characters of one name that are looked at: more have no room on any
// screen.
const maxName = 1000

// plain returns s as text of which each character takes one or two columns by itself,
// whatever the terminal makes of those that combine: a name is a traced program's choice.
func plain(s string) string {
	if len(s) > 4*maxName {
		s = strings.ToValidUTF8(s[:4*maxName], "�") + "…"
	}
	s = render.Clean(s)
	if !strings.ContainsFunc(s, joins) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if joins(r) {
			fmt.Fprintf(&b, `\u{%04x}`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// joins tells whether a character may be shown as one with those beside it, or takes
// other columns for those who count otherwise.
func joins(r rune) bool {
	if r < 0x300 || unicode.Is(unicode.Han, r) {
		return false
	}
	n := cells.RuneWidth(r)
	one := string(r)
	differs := func(s string, n int) bool { return ansi.StringWidth(s) != n || ansi.StringWidthWc(s) != n }
	return n == 0 || unicode.Is(unicode.M, r) || differs(one+one, 2*n) || differs("x"+one+"x", n+2)
}

// width is how many columns plain text takes.
func width(s string) (n int) {
	for _, r := range s {
		n += cells.RuneWidth(r)
	}
	return n
}

// cut returns plain text cut to n columns, the last of which is then "…".
func cut(s string, n int) string {
	if len(s) <= n || width(s) <= n {
		return s
	}
	var b strings.Builder
	left := n - 1
	for _, r := range s {
		if left -= cells.RuneWidth(r); left < 0 {
			break
		}
		b.WriteRune(r)
	}
	if n > 0 {
		b.WriteString("…")
	}
	return b.String()
}

// fit returns plain text in n columns, with spaces at its end, or at its beginning.
func fit(s string, n int, right bool) string {
	s = cut(s, n)
	space := strings.Repeat(" ", max(n-width(s), 0))
	if right {
		return space + s
	}
	return s + space
}

// wrap breaks lines that are longer than n columns, between words where it can. What
// goes on is indented as the line is.
func wrap(lines []string, n int) (out []string) {
	for _, l := range lines {
		indent := l[:len(l)-len(strings.TrimLeft(l, " "))]
		for width(l) > n {
			head := cut(l, n)
			head = strings.TrimSuffix(head, "…")
			if at := strings.LastIndexByte(head, ' '); at > len(indent) {
				head = head[:at]
			}
			if len(head) <= len(indent) {
				break
			}
			out = append(out, head)
			l = indent + strings.TrimLeft(l[len(head):], " ")
		}
		out = append(out, cut(l, n))
	}
	return out
}

// A text is what names a stack in a line. It is made when it is shown.
type text struct {
	of    string
	stack []*location
}

// textFrames is how many frames of a stack a line may name.
const textFrames = 4

// Text names the stack of x in a line.
func (x *Stack) Text() string {
	if stack := x.Sample.Frames(); x.text.of == "" || !slices.Equal(stack, x.text.stack) {
		of := render.Telling(stack, textFrames)
		if rest, more := strings.CutPrefix(of, x.Sample.API+" < "); more { // which has a column of its own
			of = rest
		}
		x.text = text{of: plain(of), stack: stack}
		if x.text.of == "" {
			x.text.of = "[no name]"
		}
		if !render.OnGPU(x.Sample.Kind) { // which is not added to what is
			x.text.of = "(" + plain(x.Sample.Kind) + ") " + x.text.of
		}
	}
	return x.text.of
}

// A match is whether a stack has what was looked for.
type match struct {
	text  string
	stack []*location
	is    bool
}

// matches tells whether x has text, in lower case, in what it shows or in a frame of it.
func (x *Stack) matches(text string) bool {
	s := x.Sample
	stack := s.Frames()
	if x.match.text == text && len(x.match.stack) == len(stack) && x.match.stack[0] == stack[0] {
		return x.match.is
	}
	has := func(s string) bool { return contains(s, text) }
	is := has(s.Owner) || has(s.Kind) || has(s.API) || has(s.Process) || has(s.Operator) || has(s.Module) || has(s.Category) || has(fmt.Sprint(s.PID)) ||
		slices.ContainsFunc(stack, func(l *location) bool {
			return slices.ContainsFunc(l.Lines, func(f line) bool { return has(f.Function) || has(f.File) })
		})
	x.match = match{text, stack, is}
	return is
}

// contains tells whether s has text, which is in lower case.
func contains(s, text string) bool {
	return text == "" || strings.Contains(strings.ToLower(s), text)
}

type (
	location = snapshot.Location
	line     = snapshot.Line
)
