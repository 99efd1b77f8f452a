package session

import (
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
	"github.com/gpumemtrace/gpumemtrace/symbolize"
)

// maxStacks bounds the distinct stacks kept: 64 Ki of 40 frames are 60 MiB.
const maxStacks = 1 << 16

// A frame is an address of native code, or an interpreter's frame.
type frame struct {
	address symbolize.Address
	python  *snapshot.Location // nil for native code
}

// stacks are the call stacks by id, leaf first.
type stacks struct {
	frames  map[uint64][]frame
	dropped uint64 // for want of room
}

func newStacks() stacks { return stacks{frames: map[uint64][]frame{}} }

func (s *stacks) add(id uint64, frames []frame) {
	if _, ok := s.frames[id]; ok {
		return // evicted in the kernel and sent again
	}
	if len(s.frames) >= maxStacks {
		s.dropped++
		return
	}
	s.frames[id] = frames
}

func (s *stacks) loss() snapshot.Counter {
	return snapshot.Counter{Name: "stacks_dropped", Value: s.dropped,
		Help: "stacks without frames because too many different ones were kept already"}
}
