package state

import (
	"math"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// A damaged recording shows no line that no file has, and what it says of others stays.
func TestImpossibleLines(t *testing.T) {
	for line, want := range map[int]int{0: 0, 1: 1, math.MaxInt32: math.MaxInt32, -1: 0, math.MinInt: 0, math.MaxInt32 + 1: 0} {
		given := &snapshot.Location{Lines: []snapshot.Line{{Function: "f", Line: line}, {Function: "g", Line: 7}, {Function: "h", Line: line}}}
		p := record.NewPlace(1, 0, nil, nil)
		New().Apply(&record.Name{Place: p, Location: given})
		if got := p.Location().Lines; got[0].Line != want || got[1].Line != 7 || got[2].Line != want || given.Lines[0].Line != line {
			t.Errorf("line %d: %+v, want %d", line, got, want)
		}
	}
}
