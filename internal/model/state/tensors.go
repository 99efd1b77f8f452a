package state

import (
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/tensors"
)

// LineCached is what stands for the part of a segment that is in no tensor: a
// synthetic frame above the stack that grew the pool, and a line of accounts.
const LineCached = "[cached, unused]"

// Lines of accounts. Where a process was attached to late, its allocator's own totals
// tell more of what was allocated before.
const (
	LineTensors = "tensors"
	// Tensors that were seen made, in segments from before.
	LineTensorsInOld = "tensors in segments from before attach"
	LineOldTensors   = "[tensors from before attach]"
	LineOldCached    = "[cached, in segments from before attach]"
	// Of a process that was traced from its start: tensors in memory that was not seen
	// allocated on the GPU, as managed and imported memory is, and what takes them off
	// again. That memory is in another line, or in none.
	LineTensorsElsewhere = "tensors elsewhere"
	LineElsewhere        = "[memory of tensors elsewhere]"
)

// A peak is a process's latest one of memory of class device. It is at its height
// until that memory changes: the moment that is kept of it is the one at which most
// was in tensors. A segment is there before what it was made for.
type peak struct {
	high    bool
	tensors int64 // bytes in tensors at the moment that is kept
}

// peaked marks a new peak in every layer.
func (s *State) peaked(id event.Process) {
	s.physical.Rows.Mark(id)
	p := s.peaks[id]
	if p == nil {
		p = &peak{}
		s.peaks[id] = p
	}
	p.high, p.tensors = true, s.tensors.Handed(id)
	s.tensors.Mark(id)
}

// moved ends the height of a peak: e may have changed the memory of class device.
func (s *State) moved(e *event.Event) {
	if p := s.peaks[e.Proc]; p != nil && p.high && s.ledger.Inuse(e.Proc) != s.ledger.Peak(e.Proc) {
		p.high = false
	}
}

// tensor applies an event of the tensor layer.
func (s *State) tensor(e *event.Event) {
	s.steps.e = e
	s.tensors.Apply(e)
	s.steps.e = nil
	p := s.peaks[e.Proc]
	if p == nil || !p.high || e.Op == event.OpFree {
		return
	}
	// An allocator that tells of new memory is told of there.
	if bytes := s.tensors.Handed(e.Proc); bytes > p.tensors || e.Op == event.OpReserve {
		p.tensors = bytes
		s.tensors.Mark(e.Proc)
	}
}

// handed adds to v what tensors were handed out of: the sites of the driver layer, which
// index finds among v.sites, and memory that was not seen allocated.
func (s *State) handed(v *View, index map[*ledger.Site]int32, shown func(event.Process) bool) {
	for id, pool := range s.tensors.Pools {
		if !v.has(id) {
			continue
		}
		a := amount{pool.Inuse, pool.Peak}
		if !shown(id) {
			a.inuse = 0
		}
		if i, ok := index[pool.Site]; ok {
			v.sites[i].handed, v.sites[i].pool = a, pool.Handed > 0
		} else {
			v.outside = append(v.outside, outside{id: id, device: pool.Device, amount: a})
		}
	}
}

// outside are tensors in memory whose call site is not known.
type outside struct {
	id     event.Process
	device int32
	gpu    string // label
	amount
}

// An allocator is what a process's caching allocator says of a device.
type allocator struct {
	id     event.Process
	device int32
	gpu    string // label
	tensors.Device
}

// allocators adds to v what the allocators of the shown processes say.
func (s *State) allocators(v *View, shown func(event.Process) bool) {
	for id, device := range s.tensors.Devices {
		if device.Told && v.has(id) && shown(id) {
			v.allocators = append(v.allocators, allocator{id: id, device: device.Index, Device: device})
		}
	}
}

// old splits what was allocated before the trace, of which so many bytes are left, by
// what the allocator says: tensors that it handed out before, and what of its older
// segments is in no tensor. seen are the bytes of segments that were seen allocated,
// and within those of tensors made since in older ones.
func (a *allocator) old(left, seen, within int64) (handed, cached int64) {
	handed = min(max(a.Before, 0), max(left, 0))
	cached = min(max(a.Reserved-seen-within-handed, 0), max(left-handed, 0))
	return handed, cached
}
