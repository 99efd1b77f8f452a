package state

import (
	"math"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// withPossibleLines returns n. Of a line that no file has, as in a damaged recording, it returns a copy
// without its number.
func withPossibleLines(n *record.Name) *record.Name {
	for i := range n.Location.Lines {
		if line := n.Location.Lines[i].Line; line >= 0 && line <= math.MaxInt32 {
			continue
		}
		clean, at := *n, *n.Location
		at.Lines = slices.Clone(at.Lines)
		at.Lines[i].Line = 0
		clean.Location = &at
		n = &clean
	}
	return n
}
