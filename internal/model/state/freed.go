package state

import (
	"cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/tensors"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// A freed has the tensors of a view that were freed at one stack.
type freed struct {
	sample int // of those that were made
	by     uint64
	frames []*record.Place
	tensors.Freed
}

// addFreed adds at which stacks tensors were freed, as far as frees have any.
func (c *collector) addFreed() {
	s, v := c.s, c.v
	type made struct {
		id     event.Process
		stack  uint64
		device int32
	}
	samples := map[made]int{}
	for i := range v.tensors {
		x := &v.tensors[i]
		samples[made{x.Proc, x.Stack, x.Device}] = len(v.sites) + i
	}
	s.tensors.Freed(func(id event.Process, by tensors.Freer, what tensors.Freed) bool {
		// Counters of a call site that holds nothing may have made room for others.
		if i, ok := samples[made{id, by.Stack, by.Device}]; ok {
			v.freed = append(v.freed, freed{sample: i, by: by.By, frames: s.stacks.Frames(by.By), Freed: what})
		}
		return true
	})
	sorting.Stable(v.freed, func(a, b freed) int {
		return cmp.Or(cmp.Compare(a.sample, b.sample), cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.by, b.by))
	})
}

func (b *builder) freed() (out []snapshot.Freed) {
	for i := range b.view.freed {
		x := &b.view.freed[i]
		by := snapshot.Sample{Stack: b.shape(x.by, event.KindTensor, x.frames).frames}
		out = append(out, snapshot.Freed{Sample: x.sample, By: by.Frames(), Objects: x.Objects, Bytes: x.Bytes})
	}
	return out
}
