// Package render has what the readable outputs share: text that is safe on a terminal,
// columns, tables, and the most helpful frames of a long stack.
package render

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Clean returns s as valid UTF-8 in which everything that does not print, and
// so could move a cursor, reorder, hide or imitate text, is written as an
// escape: invalid bytes and what is below 0x80 as \xNN, other characters as
// \u{NNNN}.
//
// Names, paths and symbols are a traced program's choice, and travel as they
// are: cut where they are read, and escaped where they are written for people
// or for other tools, by this function, and nowhere before.
func Clean(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, Unsafe) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1, r < 0x80 && Unsafe(r):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case Unsafe(r):
			fmt.Fprintf(&b, `\u{%04x}`, r)
		default:
			b.WriteString(s[i : i+n])
		}
		i += n
	}
	return b.String()
}

// Cut returns Clean(s), or of a longer one the beginning, in at most n bytes, which are not
// less than three.
func Cut(s string, n int) string {
	out := Clean(s[:min(len(s), n)])
	if max(len(s), len(out)) <= n {
		return out
	}
	end := n - len("…")
	for !utf8.RuneStart(out[end]) {
		end--
	}
	return out[:end] + "…"
}

// Unsafe reports whether Clean escapes r: it is no letter, mark, number,
// punctuation, symbol or ASCII space.
func Unsafe(r rune) bool { return !unicode.IsPrint(r) }
