package stacks

import (
	"slices"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// TestOperatorOfManyNodes: nodes in each other, which a process may have as many as a
// stack has frames, take as long as they are many, and no longer.
func TestOperatorOfManyNodes(t *testing.T) {
	frame := func(name string) *snapshot.Location {
		return &snapshot.Location{Address: 1, Mapping: &snapshot.Mapping{}, Lines: []snapshot.Line{{Function: name}}}
	}
	node := []*snapshot.Location{frame("torch::autograd::PyNode::apply"), frame("torch::autograd::Node::operator()")}
	// If each node took a look at all others, these would take hours.
	if got := Operator(slices.Repeat(node, 2_000_000)); got != "" {
		t.Fatalf("%q", got)
	}
}
