package stacks

import "github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"

// A Checkpoint says what a stack has to do with gradient checkpointing (torch.utils.checkpoint).
type Checkpoint uint8

// What a stack has to do with it.
const (
	NoCheckpoint      Checkpoint = iota
	CheckpointForward            // it is in a forward whose activations need not be kept
	CheckpointAgain              // it runs such a forward again, in the backward pass
)

var recomputes = words("unpack_hook recompute_fn recompute backward")

// Checkpointed returns what a stack has to do with gradient checkpointing. stack is leaf first.
func Checkpointed(stack []*snapshot.Location) (in Checkpoint) {
	for _, l := range stack {
		if !interpreted(l) || !inTorch(l, "utils/checkpoint.py") {
			continue
		}
		if _, name := method(l); recomputes[name] {
			return CheckpointAgain
		}
		in = CheckpointForward
	}
	return in
}
