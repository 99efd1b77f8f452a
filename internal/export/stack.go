package export

import (
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
)

// noStack is the one frame of a stack that could not be captured.
const noStack = "[no stack]"

// folded appends the stack to b, root first, separated by ";". Frames are
// cleaned, and their own semicolons become colons, as Brendan Gregg's
// stackcollapse programs write them.
func folded(b *strings.Builder, stack []*snapshot.Location) {
	if len(stack) == 0 {
		b.WriteString(noStack)
	}
	for i, s := range slices.Backward(stack) {
		lines := s.Lines
		for j, line := range slices.Backward(lines) {
			if i < len(stack)-1 || j < len(lines)-1 {
				b.WriteByte(';')
			}
			b.WriteString(frame(line.Function))
		}
	}
}

func frame(name string) string {
	return strings.ReplaceAll(render.Clean(name), ";", ":")
}

// frames returns the stack for people, leaf first.
func frames(stack []*snapshot.Location) []render.Frame {
	if len(stack) == 0 {
		return []render.Frame{{Function: noStack}}
	}
	var out []render.Frame
	for _, l := range stack {
		for _, line := range l.Lines {
			out = append(out, render.Frame{Function: line.Function, File: line.File, Line: int64(line.Line)})
		}
	}
	return out
}
