// Package termtext makes text of names that a traced program chose, and cuts, pads and wraps
// it to columns of a terminal.
package termtext

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/charmbracelet/x/ansi"
	"github.com/mattn/go-runewidth"

	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// cells knows how many columns of a terminal a character takes: the same wherever it is
// run.
var cells = &runewidth.Condition{StrictEmojiNeutral: true}

// maxName bounds the characters of one name that are looked at: more have no room on any
// screen.
const maxName = 1000

// Plain returns s as text of which each character takes one or two columns by itself,
// whatever the terminal makes of those that combine: a name is a traced program's choice.
func Plain(s string) string {
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

// Width is how many columns plain text takes.
func Width(s string) (n int) {
	for _, r := range s {
		n += cells.RuneWidth(r)
	}
	return n
}

// Cut returns plain text cut to n columns, the last of which is then "…".
func Cut(s string, n int) string {
	if len(s) <= n || Width(s) <= n {
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

// Fit returns plain text in n columns, with spaces at its end, or at its beginning.
func Fit(s string, n int, right bool) string {
	s = Cut(s, n)
	space := strings.Repeat(" ", max(n-Width(s), 0))
	if right {
		return space + s
	}
	return s + space
}

// Wrap breaks lines that are longer than n columns, between words where it can. What
// goes on is indented as the line is.
func Wrap(lines []string, n int) (out []string) {
	for _, l := range lines {
		indent := l[:len(l)-len(strings.TrimLeft(l, " "))]
		for Width(l) > n {
			head := Cut(l, n)
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
		out = append(out, Cut(l, n))
	}
	return out
}
