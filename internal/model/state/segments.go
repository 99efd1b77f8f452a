package state

import (
	"cmp"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/tensors"
)

// A cache is what a process's caching allocator has of a device.
type cache struct {
	id       event.Process
	device   int32
	gpu      string // label
	segments []tensors.Segments
	outside  int64 // bytes in tensors in memory that was not seen allocated
	says     tensors.Device
}

// caches returns those of the shown processes, none where not every tensor is told:
// what is free between tensors is not known then.
func (s *State) caches(shown func(event.Process) bool) []cache {
	if s.tensors.Partial() {
		return nil
	}
	type key struct {
		id     event.Process
		device int32
	}
	found := map[key]*cache{}
	at := func(id event.Process, device int32) *cache {
		k := key{id, device}
		if found[k] == nil {
			found[k] = &cache{id: id, device: device}
		}
		return found[k]
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
	slices.SortFunc(out, func(a, b cache) int {
		return cmp.Or(cmp.Compare(a.id.PID, b.id.PID), cmp.Compare(a.id.Start, b.id.Start), cmp.Compare(a.device, b.device))
	})
	return out
}

// locateCaches adds on which GPUs they are.
func (s *State) locateCaches(caches []cache) {
	for i := range caches {
		c := &caches[i]
		c.gpu = s.label(&ledger.SiteKey{Proc: c.id, Kind: event.KindTensor, Device: c.device})
	}
}

// allocator shows c, of a process with a name.
func (c *cache) allocator(name string) snapshot.Allocator {
	a := snapshot.Allocator{PID: int(c.id.PID), Process: name, GPU: c.gpu, Outside: c.outside}
	for _, x := range c.segments {
		of := snapshot.Segments{
			Private: x.Private.String(), Class: x.Class.String(), Expandable: x.Class.Expandable(), Small: x.Class.Small(), Count: int64(x.Count),
			Reserved: x.Reserved, Allocated: x.Allocated, Cached: x.Reserved - x.Allocated,
			FreeBlocks: int64(x.Blocks), LargestFree: x.Largest, Releasable: x.Releasable,
		}
		if of.Private != "" {
			of.Releasable, of.Kept = 0, x.Releasable
		}
		a.Segments = append(a.Segments, of)
	}
	// Where all that the allocator holds was seen, what it says to have handed out
	// beyond the tensors that were seen lies in there too.
	if sum := a.Total(); c.says.Told && c.says.Reserved == sum.Reserved {
		a.Unseen = c.says.Before
	}
	return a
}
