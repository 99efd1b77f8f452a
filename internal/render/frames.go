package render

import (
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// Name returns "function file:line" of a frame: C++ without parameters and
// template arguments, the file by its base name.
func Name(l *snapshot.Line) string {
	s := short(l.Function)
	if l.File == "" {
		return s
	}
	s += " " + path.Base(l.File)
	if l.Line > 0 {
		s += ":" + strconv.Itoa(l.Line)
	}
	return s
}

// short removes bracketed parts from a demangled C++ name, and leaves names
// that are nothing else ("<module>") or whose brackets are operators.
func short(name string) string {
	if !strings.Contains(name, "::") || strings.Contains(name, "operator") {
		return name
	}
	name = strings.ReplaceAll(name, "(anonymous namespace)::", "")
	var b strings.Builder
	depth := 0
	for _, r := range name {
		switch r {
		case '(', '<':
			depth++
		case ')', '>':
			depth--
		default:
			if depth == 0 {
				b.WriteRune(r)
			}
		}
	}
	if depth != 0 || b.Len() == 0 {
		return name
	}
	return b.String()
}

// Telling returns the names of the frames of a stack (leaf first) by which a
// reader knows it, at most n, in the stack's order, joined by " < ": the leaf (of a
// tensor PyTorch's allocator, which tells nothing), the user's own code before
// libraries, and among equals those nearest to the leaf. Allocators, start-up code and
// addresses without a name stand in only where there is little else.
func Telling(stack []*snapshot.Location, n int) string {
	var frames []*snapshot.Line
	for _, l := range stack {
		for i := range l.Lines {
			frames = append(frames, &l.Lines[i])
		}
	}
	picked := make([]int, len(frames))
	for i := range picked {
		picked[i] = i
	}
	slices.SortStableFunc(picked, func(a, b int) int {
		return rank(frames, b) - rank(frames, a)
	})
	picked = picked[:min(n, len(picked))]
	for len(picked) > 3 && rank(frames, picked[len(picked)-1]) <= 1 {
		picked = picked[:len(picked)-1]
	}
	slices.Sort(picked)
	names := make([]string, len(picked))
	for i, j := range picked {
		names[i] = Name(frames[j])
	}
	return strings.Join(names, " < ")
}

var (
	noName   = regexp.MustCompile(`\+0x[0-9a-f]+$`)
	plumbing = regexp.MustCompile(`^(_start$|__libc_|start_thread|clone3?$|main$|_*Py[A-Z_]|cu[A-Z]|cuda[A-Z]|c10::|std::|operator new|operator\(\)|pybind11::|THP)`)
	library  = regexp.MustCompile(`/(site|dist)-packages/|/lib/python[0-9.]+/|^<frozen |^/usr/(lib|include)/`)
)

// Library tells whether a source file is a library's, not the program's own.
func Library(file string) bool { return library.MatchString(file) }

// rank is higher for frames that say more.
func rank(frames []*snapshot.Line, i int) int {
	switch f := frames[i]; {
	case i == 0 && !strings.HasPrefix(f.Function, "c10::cuda::CUDACachingAllocator::"):
		return 5
	case noName.MatchString(f.Function):
		return 0
	case plumbing.MatchString(f.Function):
		return 1
	case f.File == "":
		return 2
	case Library(f.File), f.Function == "<module>":
		return 3
	default:
		return 4
	}
}
