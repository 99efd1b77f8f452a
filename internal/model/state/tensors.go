package state

import (
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/tensors"
)

// LineCached stands for the part of a segment that is in no tensor: a
// synthetic frame above the stack that grew the pool, and a line of accounts.
const LineCached = "[cached, unused]"

// Lines of accounts. Where a process was attached to late, its allocator's own totals show
// more of the memory from before.
const (
	LineTensors = "tensors"
	// Tensors that were seen made, in segments from before.
	LineTensorsInOld = "tensors in segments from before attach"
	LineOldTensors   = "[tensors from before attach]"
	LineOldCached    = "[cached, in segments from before attach]"
	// Of a process that was traced from its start: tensors in memory that was not seen
	// allocated on the GPU, as managed and imported memory, and a line that subtracts them
	// again. That memory is in another line, or in none.
	LineTensorsElsewhere = "tensors elsewhere"
	LineElsewhere        = "[memory of tensors elsewhere]"
)

// addPools adds the memory that tensors lie in: sites of the driver layer, which index
// finds among the view's, and memory that was not seen allocated.
func (c *collector) addPools(index map[*ledger.Site]int32) {
	v := c.v
	for id, pool := range c.s.tensors.Pools {
		a := amount{pool.Inuse, pool.Peak}
		if !c.shown(id) {
			a.inuse = 0
		}
		if i, ok := index[pool.Site]; ok {
			v.sites[i].handed, v.sites[i].pool = a, pool.HandedExtents > 0
		} else {
			v.strays = append(v.strays, strayTensors{onDevice{id: id, device: pool.Device}, a})
		}
	}
}

// strayTensors are the tensors of a device in memory whose call site is not known.
type strayTensors struct {
	onDevice
	amount
}

// An allocator has the totals of a process's caching allocator on a device.
type allocator struct {
	onDevice
	tensors.Device
	read bool // from the process's memory: the totals are those of segments from before the trace
	only bool // the process has memory of no other GPU
}

// addAllocators adds the totals of the allocators of the shown processes.
func (c *collector) addAllocators() {
	for id, device := range c.s.tensors.Devices {
		if device.Reported && c.shown(id) {
			c.v.allocators = append(c.v.allocators, allocator{onDevice: onDevice{id: id, device: device.Index}, Device: device})
		}
	}
	reported := func(id event.Process, device int32) bool {
		return slices.ContainsFunc(c.v.allocators, func(a allocator) bool { return a.id == id && a.device == device && !a.read })
	}
	for _, id := range sortedProcesses(c.s.heaps.of) {
		if !c.shown(id) {
			continue
		}
		for _, x := range c.s.older(id, c.s.heaps.of[id]) {
			if reported(id, x.device) {
				continue
			}
			if n := len(c.v.allocators); n == 0 || c.v.allocators[n-1].id != id || c.v.allocators[n-1].device != x.device {
				c.v.allocators = append(c.v.allocators, allocator{onDevice: onDevice{id: id, device: x.device}, read: true, only: oneGPU(c.s.heaps.of[id].reading)})
			}
			a := &c.v.allocators[len(c.v.allocators)-1]
			a.Before += x.allocated
			a.Reserved += x.reserved
		}
	}
}

func (a *allocator) locate(g *gpus) {
	a.gpu = g.deviceLabel(a.id, a.device)
	if a.read {
		a.gpu = g.heapLabel(a.id, a.device, a.only)
	}
}

// old splits memory from before the trace, of which so many bytes are left, by the
// allocator's totals: older tensors, and the parts of its older segments that are in no
// tensor. seen are the bytes of segments that were seen allocated,
// and within those of tensors made since in older ones.
func (a *allocator) old(left, seen, within int64) (handed, cached int64) {
	if a.read { // of tensors made since in older segments it has those, too
		handed = min(max(a.Before-within, 0), max(left, 0))
		return handed, min(max(a.Reserved-a.Before, 0), max(left-handed, 0))
	}
	handed = min(max(a.Before, 0), max(left, 0))
	cached = min(max(a.Reserved-seen-within-handed, 0), max(left-handed, 0))
	return handed, cached
}
