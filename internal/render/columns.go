package render

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
)

// maxName bounds the bytes of one name: more have no room on any screen.
const maxName = 4000

// Plain returns s as text in which each character fills one or two columns by itself,
// whatever the terminal makes of characters that combine.
func Plain(s string) string {
	s = Cut(s, maxName)
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

// joins reports whether a character may be shown as one with those beside it, or fills a
// number of columns on which terminals differ.
func joins(r rune) bool {
	if r < 0x300 || unicode.Is(unicode.Han, r) {
		return false
	}
	one := string(r)
	n := ansi.StringWidth(one)
	differs := func(s string, n int) bool { return ansi.StringWidth(s) != n || ansi.StringWidthWc(s) != n }
	return n == 0 || unicode.Is(unicode.M, r) || differs(one, n) || differs(one+one, 2*n) || differs("x"+one+"x", n+2)
}

// Width returns how many columns text fills.
func Width(s string) int { return ansi.StringWidthWc(s) }

// Shorten returns text cut to n columns, the last of which is then "…".
func Shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return ansi.TruncateWc(s, n, "…")
}

// ShortenStack cuts what Brief made to n columns. It cuts names of functions before files and lines,
// and outer frames before inner ones.
func ShortenStack(s string, n int) string {
	if Width(s) <= n {
		return s
	}
	const joint = " < "
	frame, rest, more := strings.Cut(s, joint)
	if !more {
		at := strings.LastIndexByte(frame, ' ')
		place := frame[at+1:]
		switch name := n - Width(place) - 1; {
		case at < 0 || name < -1:
			return Shorten(frame, n)
		case name < leastName:
			return place
		default:
			return Shorten(frame[:at], name) + " " + place
		}
	}
	left := n - Width(frame) - Width(joint)
	switch {
	case left < 1:
		return ShortenStack(frame, n)
	case left < leastFrame:
		return frame + joint + "…"
	}
	return frame + joint + ShortenStack(rest, left)
}

// The least widths of a frame and of a function's name that are worth to be begun.
const (
	leastFrame = 20
	leastName  = 3
)

// ShortenLeft returns text cut to its last n columns, the first of which is then "…".
func ShortenLeft(s string, n int) string {
	if over := Width(s) - n; over > 0 {
		return ansi.TruncateLeftWc(s, over+1, "…")
	}
	return s
}

// Fit returns text in n columns, with spaces at its end, or at its beginning.
func Fit(s string, n int, right bool) string {
	s = Shorten(s, n)
	space := strings.Repeat(" ", max(n-Width(s), 0))
	if right {
		return space + s
	}
	return s + space
}

// Wrap returns text in lines of n columns at most, broken between words where it can be.
// Further lines are indented as the first is, and by hang columns more.
func Wrap(s string, n, hang int) (lines []string) {
	rest := strings.TrimLeft(s, " ")
	indent := s[:len(s)-len(rest)]
	further := strings.Repeat(" ", min(len(indent)+hang, n/2))
	for {
		next := prefix(rest, 16*n+64) // what fills a line, so that long text takes no longer for each byte
		if len(next) == len(rest) && Width(indent+rest) <= n {
			break
		}
		head := ansi.TruncateWc(next, max(n-len(indent), 0), "")
		if head == "" {
			break
		}
		if at := strings.LastIndexByte(rest[:min(len(head)+1, len(rest))], ' '); at > 0 {
			head = head[:at]
		}
		lines = append(lines, indent+head)
		rest = strings.TrimLeft(rest[len(head):], " ")
		indent = further
	}
	return append(lines, Shorten(indent+rest, n))
}

// prefix returns the whole characters among the first n bytes of s.
func prefix(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
