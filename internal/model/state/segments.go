package state

import (
	"cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/keyed"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/tensors"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// A cache is a process's caching allocator on a device.
type cache struct {
	onDevice
	segments []tensors.Segments
	outside  int64 // bytes in tensors in memory that was not seen allocated
	says     tensors.Device
}

// caches returns those of the shown processes.
func (s *State) caches(shown func(event.Process) bool) []cache {
	type key struct {
		id     event.Process
		device int32
	}
	found := map[key]*cache{}
	at := func(id event.Process, device int32) *cache {
		x := keyed.At(found, key{id, device})
		x.id, x.device = id, device
		return x
	}
	pooled := map[event.Process]bool{}
	for id, pool := range s.tensors.Pools {
		switch {
		case !shown(id):
		case pool.Site != nil:
			pooled[id] = true
		case pool.Inuse != 0:
			at(id, pool.Device).outside = pool.Inuse
		}
	}
	for id := range pooled {
		for _, x := range s.tensors.Segments(id) {
			c := at(id, x.Device)
			c.segments = append(c.segments, x)
		}
	}
	for id, device := range s.tensors.Devices {
		if c := found[key{id, device.Index}]; c != nil {
			c.says = device
		}
	}
	out := make([]cache, 0, len(found))
	for _, c := range found {
		out = append(out, *c)
	}
	sorting.Stable(out, func(a, b cache) int {
		return cmp.Or(a.id.Compare(b.id), cmp.Compare(a.device, b.device))
	})
	return out
}

// allocator shows c, of a process with a name.
func (c *cache) allocator(name string) snapshot.Allocator {
	a := snapshot.Allocator{PID: int(c.id.PID), Process: name, GPU: c.gpu, Outside: c.outside}
	for i := range c.segments {
		a.Segments = append(a.Segments, c.segments[i].Shown())
	}
	// Where all memory of the allocator was seen allocated, tensors that it counts and
	// that were not seen lie in that memory too.
	if sum := a.Total(); c.says.Reported && c.says.Reserved == sum.Reserved {
		a.Unseen = c.says.Before
	}
	return a
}
