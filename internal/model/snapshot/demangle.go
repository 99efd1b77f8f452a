package snapshot

import (
	"strings"

	"github.com/ianlancetaylor/demangle"
)

// nameOptions are pprof's default ("simple"): no parameters, no template arguments, no return
// type. Template arguments of PyTorch's kernels run to kilobytes, and would show one function
// as many.
var nameOptions = []demangle.Option{
	demangle.NoParams, demangle.NoEnclosingParams, demangle.NoTemplateParams,
	demangle.NoABITags, demangle.MaxLength(12),
}

// Demangle returns the function that a linkage name stands for. A name that is not mangled
// stays as it is.
func Demangle(linkage string) (name string) {
	// Hostile files choose what is demangled.
	defer func() {
		if recover() != nil {
			name = linkage
		}
	}()
	// What is left of Rust's generic arguments goes too.
	return strings.ReplaceAll(demangle.Filter(linkage, nameOptions...), "::<>", "")
}
