package live

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// A text names a stack in a line. It is made when it is shown.
type text struct {
	of    string
	stack []*location
}

// textFrames is how many frames of a stack a line may name.
const textFrames = 4

// Text names the stack of x in a line: by its Python frames, if it has any.
func (x *Stack) Text() string {
	if stack := x.Sample.Frames(); x.text.of == "" || !slices.Equal(stack, x.text.stack) {
		x.text = text{of: render.Plain(render.Brief(stacks.Fold(stacks.NativeNone, stack), textFrames)), stack: stack}
		if x.text.of == "" {
			x.text.of = "[no name]"
		}
		if !snapshot.OnGPU(x.Sample.Kind) { // it is in no sum of GPU memory
			x.text.of = "(" + render.Plain(x.Sample.Kind) + ") " + x.text.of
		}
	}
	return x.text.of
}

// A match is whether a stack has a text.
type match struct {
	text  string
	stack []*location
	is    bool
}

// matches reports whether x has text, in lower case, in what it shows or in a frame of it.
func (x *Stack) matches(text string) bool {
	s := x.Sample
	stack := s.Frames()
	if x.match.text == text && len(x.match.stack) == len(stack) && x.match.stack[0] == stack[0] {
		return x.match.is
	}
	has := func(s string) bool { return contains(s, text) }
	is := has(s.Owner) || has(s.Kind) || has(s.API) || has(s.Process) || has(s.Operator) || has(s.Module) || has(s.Category) || has(fmt.Sprint(s.PID)) ||
		stacks.Any(stack, func(f *snapshot.Line) bool { return has(f.Function) || has(f.File) })
	x.match = match{text, stack, is}
	return is
}

// contains reports whether s has text, which is in lower case.
func contains(s, text string) bool {
	return text == "" || strings.Contains(strings.ToLower(s), text)
}

type location = snapshot.Location
