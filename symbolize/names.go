package symbolize

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/ianlancetaylor/demangle"
)

// maxName bounds a name as a file has it; libtorch's longest have some ten
// thousand bytes.
const maxName = 1 << 15

// maxShown bounds a name as it is shown.
const maxShown = 1 << 10

// nameOptions are pprof's default ("simple"): no parameters, no template
// arguments, no return type. Template arguments of PyTorch's kernels run to
// kilobytes and split what a reader takes for one function.
var nameOptions = []demangle.Option{
	demangle.NoParams, demangle.NoEnclosingParams, demangle.NoTemplateParams,
	demangle.NoABITags, demangle.MaxLength(12),
}

// readable returns the function that a linkage name stands for, fit to be
// shown on a terminal. A name that is not mangled stays as it is.
func readable(linkage string) (name string) {
	base, suffix := linkage, ""
	if before, ok := strings.CutSuffix(base, pltSuffix); ok {
		base, suffix = before, pltSuffix
	}
	// The demangler is fed by hostile files.
	defer func() {
		if recover() != nil {
			name = printable(linkage)
		}
	}()
	base = demangle.Filter(base, nameOptions...)
	// What is left of Rust's generic arguments.
	return printable(strings.ReplaceAll(base, "::<>", "") + suffix)
}

// pltSuffix marks a stub of the procedure linkage table, as objdump does.
const pltSuffix = "@plt"

// printable escapes what a terminal might act on or not show, and cuts what
// is too long.
func printable(s string) string {
	clean := true
	for i := 0; i < len(s) && clean; i++ {
		clean = s[i] >= ' ' && s[i] < 0x7f
	}
	if clean && len(s) <= maxShown {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			const hex = "0123456789abcdef"
			b.WriteString(`\x`)
			b.WriteByte(hex[s[i]>>4])
			b.WriteByte(hex[s[i]&15])
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			q := strconv.QuoteRuneToASCII(r)
			b.WriteString(q[1 : len(q)-1])
		}
		if i += n; b.Len() > maxShown && i < len(s) {
			b.WriteString("...")
			break
		}
	}
	return b.String()
}
