package export

import (
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
)

// folded appends the stack to b, root first, separated by ";". Frames are
// cleaned, and their own semicolons become colons, as Brendan Gregg's
// stackcollapse programs write them.
func folded(b *strings.Builder, stack []*snapshot.Location) {
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
