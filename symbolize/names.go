package symbolize

import (
	"strings"
	"unicode/utf8"

	"github.com/ianlancetaylor/demangle"
)

// maxName bounds a name as a file has it; libtorch's longest have some ten
// thousand bytes.
const maxName = 1 << 15

// maxShown bounds a name as it is returned, in bytes.
const maxShown = 1 << 10

// nameOptions are pprof's default ("simple"): no parameters, no template
// arguments, no return type. Template arguments of PyTorch's kernels run to
// kilobytes and split what a reader takes for one function.
var nameOptions = []demangle.Option{
	demangle.NoParams, demangle.NoEnclosingParams, demangle.NoTemplateParams,
	demangle.NoABITags, demangle.MaxLength(12),
}

// readable returns the function that a linkage name stands for. A name that is
// not mangled stays as it is.
func readable(linkage string) (name string) {
	// The demangler is fed by hostile files.
	defer func() {
		if recover() != nil {
			name = cut(linkage)
		}
	}()
	// What is left of Rust's generic arguments goes too.
	return cut(strings.ReplaceAll(demangle.Filter(linkage, nameOptions...), "::<>", ""))
}

func cut(s string) string {
	if len(s) <= maxShown {
		return s
	}
	end := maxShown
	for end > maxShown-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "..."
}
