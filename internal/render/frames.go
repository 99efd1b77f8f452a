package render

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
)

// Name returns "function file:line" of a frame: C++ without parameters and
// template arguments, the file by its base name.
func Name(l *snapshot.Line) string {
	if l.File == "" {
		return short(l.Function)
	}
	return short(l.Function) + " " + Where(path.Base(l.File), l.Line)
}

// Where returns "file:line", or the file where the line is not known.
func Where(file string, line int) string {
	if line <= 0 || file == "" {
		return file
	}
	return file + ":" + strconv.Itoa(line)
}

// Frames returns "function file:line" of each frame of a stack, innermost first, with whole
// names, as clean has them. Beyond most frames there is an ellipsis.
func Frames(stack []*snapshot.Location, most int, clean func(string) string) (out []string) {
	for _, l := range stack {
		for i := range l.Lines {
			if len(out) == most {
				return append(out, "…")
			}
			out = append(out, clean(strings.TrimSuffix(l.Lines[i].Function+" "+Where(l.Lines[i].File, l.Lines[i].Line), " ")))
		}
	}
	return out
}

// Place returns "file:line function" of a frame, the file as it is given, "" for none: what must not be
// cut comes first.
func Place(l *snapshot.Line, file string) string {
	return strings.TrimPrefix(Where(file, l.Line)+" "+short(l.Function), " ")
}

// ShortPaths returns the end of each path: the name with its directory, and with as many more
// as tell it from the others.
func ShortPaths(paths []string) map[string]string {
	out := make(map[string]string)
	rest := slices.Compact(slices.Sorted(slices.Values(paths)))
	for n := 2; len(rest) > 0; n++ {
		ends := make(map[string][]string)
		for _, p := range rest {
			end := lastNames(p, n)
			ends[end] = append(ends[end], p)
		}
		rest = nil
		for end, same := range ends {
			if len(same) == 1 {
				out[same[0]] = end
			} else {
				rest = append(rest, same...)
			}
		}
	}
	return out
}

// lastNames returns the last n names of a path.
func lastNames(p string, n int) string {
	at := len(p)
	for ; n > 0 && at >= 0; n-- {
		at = strings.LastIndexByte(p[:at], '/')
	}
	return p[at+1:]
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

// maxBrief bounds a name in a line that names a stack, in bytes: each stack has such a line.
const maxBrief = 512

// Brief returns the names of the most helpful frames of a stack (leaf first), at most n, in
// the stack's order, cut and joined by " < ". The leaf comes first, unless it only allocates or dispatches;
// then the user's own code, then libraries; among equals the frame nearest to the leaf. Allocators, start-up code and
// addresses without a name are there only where there is nothing else. Without Python, the operator of
// PyTorch or the node of autograd's graph stands for its functions, and "backward pass" for autograd's
// engine.
func Brief(stack []*snapshot.Location, n int) string {
	var end []string
	if !stacks.Python(stack) {
		backward := stacks.Backward(stack)
		operator, callers := stacks.Called(stack)
		if operator != "" && operator != snapshot.NotNamed {
			stack, end = stack[:len(stack)-len(callers)], append(end, operator)
		}
		if backward {
			end = append(end, "backward pass")
		}
	}
	end = end[:min(n, len(end))]
	return strings.Join(append(brief(stack, n-len(end), len(end) > 0), end...), " < ")
}

// brief returns the names of at most n frames. Frames that say nothing are left out if another frame says
// something, or if something is said besides.
func brief(stack []*snapshot.Location, n int, said bool) []string {
	var frames []*snapshot.Line
	for _, l := range stack {
		for i := range l.Lines {
			frames = append(frames, &l.Lines[i])
		}
	}
	picked, ranks := make([]int, len(frames)), make([]int, len(frames))
	for i := range frames {
		picked[i], ranks[i] = i, rank(frames, i)
	}
	if said || slices.Max(append(ranks, 0)) > 1 {
		picked = slices.DeleteFunc(picked, func(i int) bool { return ranks[i] <= 1 })
	}
	slices.SortStableFunc(picked, func(a, b int) int { return ranks[b] - ranks[a] })
	picked = picked[:min(n, len(picked))]
	slices.Sort(picked)
	names := make([]string, len(picked))
	for i, j := range picked {
		names[i] = Cut(Name(frames[j]), maxBrief)
	}
	return slices.Compact(names)
}

var (
	noName = regexp.MustCompile(`\+0x[0-9a-f]+$`)
	// plumbing are functions that allocate, dispatch or start programs.
	plumbing = regexp.MustCompile(`^(_start$|__libc_|start_thread|clone3?$|_*Py[A-Z_]|cu[A-Z]|cuda[A-Z]|c10::|std::|operator new|operator\(\)|pybind11::|THP|` +
		`at::(_ops|detail|meta|native|\(anonymous namespace\))::|torch::autograd::)`)
)

// rank is higher for frames that say more.
func rank(frames []*snapshot.Line, i int) int {
	switch f := frames[i]; {
	case noName.MatchString(f.Function):
		return 0
	case plumbing.MatchString(f.Function) && !strings.HasSuffix(f.File, ".py"), f.Function == "main" && f.File == "":
		return 1
	case i == 0:
		return 5
	case f.File == "":
		return 2
	case stacks.Library(f.File), f.Function == "<module>":
		return 3
	default:
		return 4
	}
}

// Target names what was traced, and says how many children of it hold memory that the trace found later.
func Target(s *snapshot.Snapshot) string {
	text, children := cmp.Or(s.Meta.Target, "unknown target"), map[int]bool{}
	for i := range s.Samples {
		if pid := s.Samples[i].PID; pid != 0 && !strings.Contains(text, fmt.Sprintf("pid %d ", pid)) {
			children[pid] = true
		}
	}
	if n := len(children); n > 0 && strings.HasPrefix(text, "pid ") && !strings.Contains(text, "child process") {
		text += fmt.Sprintf(" and %d child process", n)
		if n > 1 {
			text += "es"
		}
	}
	return text
}
