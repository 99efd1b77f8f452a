package stacks

import (
	"regexp"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// Own returns the lines of a stack that are of the program's own code, innermost first: the
// Python frames outside installed packages and the standard library. Without Python they are
// the frames of the executable: those of which the source is known, or else the functions, with
// the executable as their file. Where no frame is the program's own, it returns the Python
// frames there are, and false. A frame that has no name yet is among the lines where it may be the
// program's own: if it is the first one, own is false.
func Own(stack []*snapshot.Location) (lines []*snapshot.Line, own bool) {
	var mine, python, sources, functions []*snapshot.Line
	var owners Owners
	named := true // are all frames that come before the first of sources
	for i, l := range stack {
		switch {
		case !l.Named():
			if l.Address == 0 { // it may be Python's
				mine = append(mine, &l.Lines[0])
			}
			functions = append(functions, &l.Lines[0])
			named = named && sources != nil
		case synthetic(l) || trampoline(l):
		case interpreted(l):
			python = append(python, &l.Lines[0])
			if owners.Owner(l) == application && !startsOthers(stack[:i], &l.Lines[0]) {
				mine = append(mine, &l.Lines[0])
			}
		case owners.Owner(l) == application && !runtimeAPI(l):
			sources = append(sources, sourceLines(l)...)
			functions = append(functions, &snapshot.Line{Function: l.Lines[0].Function, File: l.Mapping.Path})
		}
	}
	switch {
	case mine != nil:
		return mine, mine[0].Function != snapshot.NotNamed
	case python != nil:
		return python, false
	case sources != nil && named:
		return sources, true
	}
	return functions, functions != nil && functions[0].Function != snapshot.NotNamed
}

// generated are files that PyTorch's compiler and attrs wrote.
var generated = regexp.MustCompile(`/torchinductor_|^<eval_with_key>|^<attrs generated `)

// ofDataclass reports whether a line is of a method that dataclasses made, such as an __init__.
// CPython before 3.11 gives it no other name.
func ofDataclass(line *snapshot.Line) bool {
	return line.File == "<string>" && (strings.HasPrefix(line.Function, "__create_fn__.") || line.Function == "__init__")
}

// installedCommand is a script that starts a package's command, such as bin/torchrun.
var installedCommand = regexp.MustCompile(`/bin/[^/.]+$`)

// startsOthers reports whether a line, which called inside, is in no package but is not a
// person's either: it is generated, or it starts a package's command or a process of
// multiprocessing.
func startsOthers(inside []*snapshot.Location, line *snapshot.Line) bool {
	switch {
	case generated.MatchString(line.File) || ofDataclass(line):
		return true
	case line.Function != "<module>":
		return false
	case line.File == "<string>":
		return slices.ContainsFunc(inside, func(l *snapshot.Location) bool {
			return interpreted(l) && strings.HasSuffix(l.Lines[0].File, "/multiprocessing/spawn.py")
		})
	}
	return installedCommand.MatchString(line.File)
}

// runtimeAPI reports whether a frame is of CUDA's runtime, which is linked into programs.
func runtimeAPI(l *snapshot.Location) bool {
	return nativePrefix(l, "cuda") || nativePrefix(l, "__cuda")
}

// sourceLines returns the lines of a frame of which the source is known to be no library's.
func sourceLines(l *snapshot.Location) (lines []*snapshot.Line) {
	for i := range l.Lines {
		if line := &l.Lines[i]; line.File != "" && line.Line != 0 && !Library(line.File) {
			lines = append(lines, line)
		}
	}
	return lines
}

// Python reports whether a stack has a Python frame.
func Python(stack []*snapshot.Location) bool { return begins(stack) >= 0 }

// Backward reports whether autograd's engine asked for the memory of a stack.
func Backward(stack []*snapshot.Location) bool { return slices.ContainsFunc(stack, engine) }

var library = regexp.MustCompile(`/(site|dist)-packages/|/lib/python[0-9.]+/|^<frozen |^/usr/(lib|include)/`)

// Library reports whether a source file is a library's, not the program's own.
func Library(file string) bool { return library.MatchString(file) }
