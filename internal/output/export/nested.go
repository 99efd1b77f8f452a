package export

import (
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// Columns of which a sample has several values, one inside of another. A row has what
// is of its value itself, the innermost one, and the total of what is inside of it.
var nested = map[string]func(*snapshot.Sample) []string{
	"operator": operators,
	"module":   modules,
	"function": functions,
	"line":     lines,
}

// operators are those of PyTorch that a sample is in, innermost first.
func operators(s *snapshot.Sample) []string {
	names := stacks.Operators(s.Stack)
	if s.Operator != "" && !slices.Contains(names, s.Operator) {
		names = append(names, s.Operator) // its frames are not shown
	}
	return names
}

// modules are the paths of the modules that a sample is in.
func modules(s *snapshot.Sample) (paths []string) {
	for path := s.Module; path != ""; {
		paths = append(paths, path)
		path = path[:max(strings.LastIndexByte(path, '/'), 0)]
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

// lines are those of the stack of which the source is known.
func lines(s *snapshot.Sample) (names []string) {
	for _, l := range s.Frames() {
		for i := range l.Lines {
			if line := &l.Lines[i]; line.File != "" && line.Line != 0 {
				names = append(names, render.Name(line))
			}
		}
	}
	return names
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

// nests tells whether a column of by is nested.
func (by By) nests() bool {
	return slices.ContainsFunc(by, func(c column) bool { return c.all != nil })
}

// within returns every row that s is in, its own among them: what it is in each column,
// or is inside of there.
func (by By) within(s *snapshot.Sample) (rows [][]string) {
	rows = [][]string{nil}
	for _, c := range by {
		values := []string{c.of(s)}
		if c.all != nil {
			values = append(values, c.all(s)...)
			slices.Sort(values)
			values = slices.Compact(values) // what calls itself is there once
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
