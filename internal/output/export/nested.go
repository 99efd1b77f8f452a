package export

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/keyed"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// Columns of which a sample has several values, one inside of another. A row has the memory
// of which its value is the innermost one, and the total of the memory inside of it.
var nested = map[string]func(*snapshot.Sample) []string{
	"module":   modules,
	"function": functions,
	"line":     lines, // until By.samples

	"annotation": said(snapshot.Annotation),
	"compiled":   said(snapshot.Compiled),

	"module_path":  modulePaths,
	"library-line": lines,
}

// notCached leaves cached memory out: what made its segment does not use it.
func notCached(all func(*snapshot.Sample) []string) func(*snapshot.Sample) []string {
	if all == nil {
		return nil
	}
	return func(s *snapshot.Sample) []string {
		if s.Kind == snapshot.Cached {
			return nil
		}
		return all(s)
	}
}

// operator is the one that the program or autograd called for a sample. What the driver took for itself
// while an operator ran, such as a context, is not the operator's: the next one would have
// caused it as well.
func operator(s *snapshot.Sample) string {
	if takenByDriver(s) || s.Kind == snapshot.Cached {
		return ""
	}
	return s.Operator
}

// operators are those that a sample is in, innermost first.
func operators(s *snapshot.Sample) []string {
	if operator(s) == "" {
		return nil
	}
	names := stacks.Operators(s.Stack)
	if !slices.Contains(names, s.Operator) {
		names = append(names, s.Operator) // its frames are not shown
	}
	return names
}

// holderAlike is the holder of a sample, the same for all layers of a model.
func holderAlike(s *snapshot.Sample) string { return holder.Alike(s.Holder) }

// exact has each holder by itself, and the operators inside of those that were called, as PyTorch's profiler does.
func (by By) exact() By {
	by = slices.Clone(by)
	if i := by.index("holder"); i >= 0 {
		by[i].of = func(s *snapshot.Sample) string { return s.Holder }
	}
	if i := by.index("operator"); i >= 0 {
		by[i].of = innermost(operators)
		if !by.nests() {
			by[i].all = operators
		}
	}
	return by
}

// said returns what a sample's frames with a prefix say, innermost first.
func said(prefix string) func(*snapshot.Sample) []string {
	return func(s *snapshot.Sample) (out []string) {
		for _, l := range s.Stack {
			if rest, ok := strings.CutPrefix(l.Lines[0].Function, prefix); ok && l.Address == 0 {
				out = append(out, rest)
			}
		}
		return out
	}
}

// WithPatterns returns by with the rows of --pattern: a text is a name and a regular expression, with =
// between, and a sample is in the row of the first expression that its frames match, each as function
// and file:line.
func (by By) WithPatterns(texts []string) (By, error) {
	i := by.index("pattern")
	switch {
	case i < 0 && len(texts) > 0:
		return nil, errors.New("--pattern needs --by pattern")
	case i >= 0 && len(texts) == 0:
		return nil, errors.New("--by pattern needs a --pattern or several, such as --pattern 'attention=Attention'")
	case i < 0:
		return by, nil
	}
	type pattern struct {
		name string
		*regexp.Regexp
	}
	var all []pattern
	for _, text := range texts {
		name, expression, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("--pattern %q: want NAME=EXPRESSION, such as 'attention=Attention'", text)
		}
		r, err := regexp.Compile(expression)
		if err != nil {
			return nil, fmt.Errorf("--pattern %q: %w", text, err)
		}
		all = append(all, pattern{name, r})
	}
	by = slices.Clone(by)
	by[i].of = func(s *snapshot.Sample) string {
		for _, p := range all {
			if s.Kind != snapshot.Cached && stacks.Any(s.Stack, func(f *snapshot.Line) bool {
				return p.MatchString(fmt.Sprintf("%s %s:%d", f.Function, f.File, f.Line))
			}) {
				return p.name
			}
		}
		return ""
	}
	return by, nil
}

// modules are the paths of the modules that a sample is in.
func modules(s *snapshot.Sample) (paths []string) {
	for path := s.Module; path != ""; {
		paths = append(paths, path)
		path = path[:max(strings.LastIndexByte(path, '/'), 0)]
	}
	return paths
}

// modulePaths are the paths to the modules that a sample is in, innermost first.
func modulePaths(s *snapshot.Sample) (paths []string) {
	end := len(s.ModulePath)
	for _, part := range slices.Backward(holder.Segments(s.ModulePath)) {
		paths = append(paths, strings.TrimSuffix(s.ModulePath[:end], ": "))
		end = max(end-len(part), 0)
	}
	return paths
}

// functions are those of the stack, without the files that they are in.
func functions(s *snapshot.Sample) (names []string) {
	for _, l := range s.Frames() {
		for _, line := range l.Lines {
			names = append(names, render.Name(&snapshot.Line{Function: line.Function}))
		}
	}
	return names
}

// sources are the lines of the stack of which the source is known, without those of CUDA's runtime if
// others are left.
func sources(s *snapshot.Sample) (all []*snapshot.Line) {
	inside := 0
	for _, l := range s.Frames() {
		for i := range l.Lines {
			if line := &l.Lines[i]; line.File != "" && line.Line != 0 {
				all = append(all, line)
				if runtimeCall.MatchString(line.Function) {
					inside = len(all)
				}
			}
		}
	}
	if inside < len(all) {
		all = all[inside:]
	}
	return all
}

// runtimeCall are functions of CUDA's runtime.
var runtimeCall = regexp.MustCompile(`^cuda[A-Z]`)

// lines are the names of these lines.
func lines(s *snapshot.Sample) (names []string) {
	for _, line := range sources(s) {
		names = append(names, render.Name(line))
	}
	return names
}

// withoutHelpers leaves out of each stack of C and C++ a function that allocates for several callers,
// such as an allocator of the program's own: which caller it was is what differs.
func withoutHelpers(found map[*snapshot.Sample][]*snapshot.Line) {
	callers := map[string]map[string]bool{}
	for s, lines := range found {
		if len(lines) > 1 && !stacks.Python(s.Stack) {
			keyed.Map(callers, lines[0].Function)[lines[1].Function] = true
		}
	}
	for s, lines := range found {
		if len(lines) > 1 && !stacks.Python(s.Stack) && len(callers[lines[0].Function]) > 1 {
			found[s] = lines[1:]
		}
	}
}

// ownLines is among of the column of the program's own lines. A sample without any has the
// lines that come nearest to these, unless they are inside a library alone: nobody knows those.
func ownLines(samples []*snapshot.Sample) func(*snapshot.Sample) []string {
	found := make(map[*snapshot.Sample][]*snapshot.Line, len(samples))
	var files []string
	for _, s := range samples {
		if found[s], _ = stacks.Own(s.Stack); found[s] == nil && !insideLibrary(s) {
			found[s] = sources(s)
		}
	}
	withoutHelpers(found)
	for _, s := range samples {
		for _, l := range found[s] {
			files = append(files, l.File)
		}
	}
	short := render.ShortPaths(files)
	return notCached(func(s *snapshot.Sample) (names []string) {
		for _, l := range found[s] {
			names = append(names, render.Place(l, short[l.File]))
		}
		return names
	})
}

// insideLibrary reports whether no frame of a sample that the file can tell apart is outside its library.
func insideLibrary(s *snapshot.Sample) bool {
	mapped := slices.ContainsFunc(s.Stack, func(l *snapshot.Location) bool { return l.Mapping != nil })
	return mapped && libraryNames[s.Owner] != "" && !takenByDriver(s) && !stacks.Python(s.Stack) && !stacks.Backward(s.Stack)
}

// innermost returns the column's own value of a sample.
func innermost(all func(*snapshot.Sample) []string) func(*snapshot.Sample) string {
	return func(s *snapshot.Sample) string {
		if values := all(s); len(values) > 0 {
			return values[0]
		}
		return ""
	}
}

// nests reports whether a column of by is nested.
func (by By) nests() bool {
	return slices.ContainsFunc(by, func(c column) bool { return c.all != nil })
}

// within returns every row that s is in: its own, and those that it is inside of.
func (by By) within(s *snapshot.Sample) (rows [][]string) {
	rows = [][]string{nil}
	for _, c := range by {
		values := []string{c.valueOf(s)}
		if c.all != nil {
			values = append(values, c.all(s)...)
			slices.Sort(values)
			values = slices.Compact(values) // a function that calls itself is there once
		}
		var more [][]string
		for _, row := range rows {
			for _, v := range values {
				more = append(more, append(slices.Clone(row), v))
			}
		}
		rows = more
	}
	return rows
}
