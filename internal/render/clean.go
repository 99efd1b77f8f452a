// Package render holds what the readable outputs share: text that is safe on
// a terminal, columns, and the few frames of a long stack that tell most.
package render

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Clean returns s as valid UTF-8 in which everything that could move a
// cursor, reorder or hide text is written as an escape: control characters
// and invalid bytes as \xNN, format characters and line separators (Unicode
// Cc, Cf, Zl, Zp) as \u{NNNN}. Process names, paths and symbols come from
// traced programs: no output shows them otherwise.
func Clean(s string) string {
	if isClean(s) {
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

func isClean(s string) bool {
	for i, r := range s {
		if r == utf8.RuneError {
			if _, n := utf8.DecodeRuneInString(s[i:]); n == 1 {
				return false
			}
		}
		if Unsafe(r) {
			return false
		}
	}
	return true
}

// Unsafe reports whether Clean escapes r.
func Unsafe(r rune) bool {
	if r < 0x80 {
		return r < 0x20 || r == 0x7f
	}
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp)
}
