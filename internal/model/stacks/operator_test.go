package stacks

import (
	"slices"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// TestOperatorOfManyNodes: nodes in each other, which a process may have as many as a
// stack has frames, take as long as they are many, and no longer.
func TestOperatorOfManyNodes(t *testing.T) {
	frame := func(name string) *snapshot.Location {
		return &snapshot.Location{Address: 1, Mapping: &snapshot.Mapping{}, Lines: []snapshot.Line{{Function: name}}}
	}
	node := []*snapshot.Location{frame("torch::autograd::PyNode::apply"), frame("torch::autograd::Node::operator()")}
	took := func(n int) time.Duration {
		stack := slices.Repeat(node, n)
		best := time.Hour
		for range 5 {
			begin := time.Now()
			if got := Operator(stack); got != "" {
				t.Fatalf("%q", got)
			}
			best = min(best, time.Since(begin))
		}
		return best
	}
	few, many := took(200), took(20_000)
	if many > 1000*few {
		t.Errorf("200 take %v, 20,000 %v", few, many)
	}
}
