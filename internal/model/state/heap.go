package state

import (
	"cmp"
	"slices"
	"time"

	holders "github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/keyed"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

const (
	// maxStorages bounds the storages of all readings of heaps that are kept.
	maxStorages = 1 << 18
	// maxBlocks bounds the blocks of allocators that are kept.
	maxBlocks = 1 << 19
	// maxModules bounds the modules of one reading. They share maxStorages.
	maxModules = 1 << 14
	// maxRetainers bounds those of one reading: the largest.
	maxRetainers = 1 << 10
)

var storagesDropped = loss.Of("heap_storages_dropped", "tensors and modules of a reading of a heap that were dropped because there was no room: they have no holder or no name")

// heaps are the last readings of processes' heaps.
type heaps struct {
	of      map[event.Process]*heap
	held    int // storages and modules of all readings
	pieces  int // blocks of all readings
	coming  int // storages of readings that are not complete
	dropped uint64
}

// A heap is the last reading of one process's heap. A reading that is kept does not
// change: one with fewer storages takes its place.
type heap struct {
	reading *holders.Reading // nil until one was complete
	coming  *holders.Reading // the parts of the next, nil for none
	// storages are those of coming, one slice for each part. They are joined when the last part is there.
	storages [][]holders.Storage

	allocators []holders.Allocator // the parts that came of the reading's
	segments   []segment           // of the reading's allocators
	parts      int                 // of them that came
	refused    bool                // they had no room, or a part is missing
}

// A segment is one of PyTorch's allocator, as a reading found it.
type segment struct {
	device              int32
	from, to            uint64
	reserved, allocated int64
}

// came returns how many storages have come for the next reading.
func (x *heap) came() (n int) {
	for _, part := range x.storages {
		n += len(part)
	}
	return n
}

func newHeaps() heaps {
	return heaps{of: map[event.Process]*heap{}}
}

// apply adds a part of a reading.
func (h *heaps) apply(r *record.Heap) {
	x := keyed.At(h.of, r.Process)
	part := r.Reading
	if x.coming != nil && (x.coming.Begin != part.Begin || x.coming.End != part.End) { // its last part was lost
		h.coming -= x.came()
		x.coming, x.storages = nil, nil
	}
	if x.coming == nil {
		head := *part
		head.Storages, head.Modules, head.Retainers, head.Loss = nil, nil, nil, nil
		x.coming = &head
	}
	n := min(len(part.Storages), maxStorages-h.coming)
	h.dropped += uint64(len(part.Storages) - n)
	h.coming += n
	x.storages = append(x.storages, part.Storages[:n])
	x.coming.Modules = append(x.coming.Modules, part.Modules[:min(len(part.Modules), maxModules-len(x.coming.Modules))]...)
	x.coming.Retainers = append(x.coming.Retainers, part.Retainers[:min(len(part.Retainers), maxRetainers-len(x.coming.Retainers))]...)
	if len(x.coming.Loss) < maxNotes {
		x.coming.Loss = append(x.coming.Loss, part.Loss...)
	}
	if !r.More {
		h.coming -= x.came()
		h.complete(x)
	}
}

// complete replaces a heap's reading by the one that came.
func (h *heaps) complete(x *heap) {
	next := x.coming
	next.Storages = slices.Concat(x.storages...)
	h.held -= size(x.reading)
	h.clear(x)
	// One takes no more than it leaves to others.
	x.coming, x.storages, x.reading = nil, nil, largest(next, (maxStorages-h.held)/2)
	h.dropped += uint64(size(next) - size(x.reading))
	h.held += size(x.reading)
}

// blocks adds a part of what the allocators have of the last reading. Those of a process are complete, or
// none are kept.
func (h *heaps) blocks(r *record.Blocks) {
	x := h.of[r.Process]
	if x == nil || x.reading == nil || x.reading.Begin != r.Begin || len(x.reading.Allocators) > 0 || x.refused {
		return
	}
	if r.Index != x.parts || len(r.Blocks) == 0 || len(x.allocators) > maxDevices {
		h.pieces -= pieces(x.allocators)
		x.allocators, x.refused = nil, true
		return
	}
	x.parts++
	if n := len(x.allocators); n == 0 || x.allocators[n-1].Device != r.Device {
		x.allocators = append(x.allocators, holders.Allocator{Device: r.Device})
	}
	last := &x.allocators[len(x.allocators)-1]
	last.Blocks = append(last.Blocks, r.Blocks...)
	h.pieces += len(r.Blocks)
	all := pieces(x.allocators)
	if others := h.pieces - all; all > (maxBlocks-others)/2 { // one takes no more than it leaves to others
		h.dropped += uint64(all)
		h.pieces -= all
		x.allocators, x.refused = nil, true
		return
	}
	if r.More {
		return
	}
	next := *x.reading
	next.Allocators, x.allocators = x.allocators, nil
	x.reading, x.segments = &next, segmentsOf(next.Allocators)
}

// pieces is how many blocks allocators have.
func pieces(all []holders.Allocator) (n int) {
	for i := range all {
		n += len(all[i].Blocks)
	}
	return n
}

// segmentsOf returns the segments of allocators.
func segmentsOf(all []holders.Allocator) (out []segment) {
	for i := range all {
		for blocks := range all[i].Segments() {
			s := segment{device: all[i].Device, from: blocks[0].Address}
			for j := range blocks {
				s.add(&blocks[j])
			}
			out = append(out, s)
		}
	}
	return out
}

// add adds a block at the end of a segment.
func (s *segment) add(b *holders.Block) {
	s.to = b.Address + b.Size
	s.reserved += int64(min(b.Size, 1<<40))
	if b.State == holders.Allocated {
		s.allocated += int64(min(b.Size, 1<<40))
	}
}

// older returns the segments of a process, or parts of them, that were there before the trace: nobody was seen
// to allocate them.
func (s *State) older(id event.Process, x *heap) (out []segment) {
	if len(x.segments) == 0 {
		return nil
	}
	var seen []span
	for _, e := range s.ledger.Extents(id) {
		seen = append(seen, span{e.From, e.To})
	}
	sortSpans(seen)
	for _, one := range x.segments {
		if !overlaps(seen, one.from, one.to) {
			out = append(out, one)
			continue
		}
		// An expandable segment may have grown since.
		for _, b := range blocksIn(x.reading.Allocators, &one) {
			if !overlaps(seen, b.Address, b.Address+b.Size) {
				part := segment{device: one.device, from: b.Address}
				part.add(&b)
				out = append(out, part)
			}
		}
	}
	return out
}

// blocksIn returns the blocks of a segment.
func blocksIn(all []holders.Allocator, s *segment) []holders.Block {
	for i := range all {
		if all[i].Device != s.device {
			continue
		}
		find := func(at uint64) int {
			n, _ := slices.BinarySearchFunc(all[i].Blocks, at, func(b holders.Block, at uint64) int { return cmp.Compare(b.Address, at) })
			return n
		}
		if from, to := find(s.from), find(s.to); from < to {
			return all[i].Blocks[from:to]
		}
	}
	return nil
}

// size is how many entries a reading has that share maxStorages.
func size(r *holders.Reading) int {
	if r == nil {
		return 0
	}
	return len(r.Storages) + len(r.Modules)
}

// largest returns a reading with n storages and modules: the largest storages, and modules
// if there is room for all.
func largest(r *holders.Reading, n int) *holders.Reading {
	if n >= size(r) {
		return r
	}
	out := *r
	out.Modules = nil
	if n >= len(r.Storages) {
		return &out
	}
	out.Storages = slices.Clone(r.Storages)
	sorting.Stable(out.Storages, func(a, b holders.Storage) int { return cmp.Compare(b.Bytes, a.Bytes) })
	out.Storages = slices.Clip(out.Storages[:n])
	return &out
}

// forget drops the reading of a process, whose memory is another program's or is gone.
func (h *heaps) forget(id event.Process) {
	x := h.of[id]
	if x == nil {
		return
	}
	if x.coming != nil {
		h.coming -= x.came()
	}
	h.held -= size(x.reading)
	h.clear(x)
	delete(h.of, id)
}

// clear drops the blocks of a heap.
func (h *heaps) clear(x *heap) {
	h.pieces -= pieces(x.allocators)
	if x.reading != nil {
		h.pieces -= pieces(x.reading.Allocators)
	}
	x.allocators, x.segments, x.parts, x.refused = nil, nil, 0, false
}

// loss returns what had no room, nothing if there was no reading.
func (h *heaps) loss() []loss.Counter {
	if h.dropped == 0 && len(h.of) == 0 {
		return nil
	}
	return []loss.Counter{storagesDropped.Counter(h.dropped)}
}

// keyframe yields records that rebuild the readings.
func (h *heaps) keyframe(yield func(record.Record)) {
	for _, id := range sortedProcesses(h.of) {
		if r := h.of[id].reading; r != nil {
			for _, part := range record.Heaps(id, r) {
				yield(part)
			}
			for _, part := range record.BlocksOf(id, r) {
				yield(part)
			}
		}
	}
}

func sortedProcesses[T any](of map[event.Process]T) []event.Process {
	ids := make([]event.Process, 0, len(of))
	for id := range of {
		ids = append(ids, id)
	}
	sorting.Stable(ids, event.Process.Compare)
	return ids
}

// heap applies a part of a reading of a process that is known.
func (s *State) heap(r *record.Heap) {
	if s.processes.known[r.Process] == nil {
		return
	}
	s.heaps.apply(r)
}

// expected reports whether a newer reading may come for an incident, because heaps are read
// after a failure too.
func (h *heaps) expected(in *Incident) bool {
	x := h.of[in.first.Proc]
	return x != nil && x.reading != nil && x.reading.Begin < in.first.Time
}

// renewHeaps replaces the readings of a view that was made earlier, if there are newer ones.
func (c *collector) renewHeaps() {
	before := c.v.heaps
	c.v.heaps = nil
	c.addHeaps()
	if len(c.v.heaps) == 0 {
		c.v.heaps = before
	}
}

// modules returns the modules of each process, as of the last readings.
func (h *heaps) modules() map[event.Process][]holders.Module {
	out := map[event.Process][]holders.Module{}
	for id, x := range h.of {
		if x.reading != nil {
			out[id] = x.reading.Modules
		}
	}
	return out
}

// A heapView is what a View has of one process's heap.
type heapView struct {
	id      event.Process
	reading *holders.Reading
	gpus    map[int32]string // labels by the process's numbers of devices
	older   []segment        // those from before the trace, if the allocator was read
}

// addHeaps copies the readings of the shown processes.
func (c *collector) addHeaps() {
	s := c.s
	for _, id := range sortedProcesses(s.heaps.of) {
		r := s.heaps.of[id].reading
		if r == nil || !c.shown(id) {
			continue
		}
		x := heapView{id: id, reading: r, gpus: map[int32]string{}, older: s.older(id, s.heaps.of[id])}
		for i := range r.Storages {
			if d := r.Storages[i].Device; r.Storages[i].OnGPU() && x.gpus[d] == "" && len(x.gpus) < maxDevices {
				x.gpus[d] = s.heapLabel(id, d, oneGPU(r))
			}
		}
		c.v.heaps = append(c.v.heaps, x)
	}
}

// modulePath returns the path of the first one of modules of a process that has one, "" for
// none. The last reading before the view counts, or else the last one of the recording.
func (v *View) modulePath(of event.Process, modules []uint64) string {
	if len(modules) == 0 || !v.want.Holders {
		return ""
	}
	var known []holders.Module // in the order of their addresses
	if i := slices.IndexFunc(v.heaps, func(x heapView) bool { return x.id == of }); i >= 0 {
		known = v.heaps[i].reading.Modules
	} else {
		known = v.later[of]
	}
	for _, address := range modules {
		if j, ok := slices.BinarySearchFunc(known, address, func(m holders.Module, at uint64) int { return cmp.Compare(m.Address, at) }); ok {
			return known[j].Path
		}
	}
	return ""
}

// oneGPU reports whether all of a reading that is on GPUs is on one.
func oneGPU(r *holders.Reading) bool {
	first := int32(-1)
	for i := range r.Storages {
		if s := &r.Storages[i]; s.OnGPU() {
			if first >= 0 && s.Device != first {
				return false
			}
			first = s.Device
		}
	}
	return len(r.Allocators) == 0 || len(r.Allocators) == 1 && (first < 0 || r.Allocators[0].Device == first)
}

// heapLabel returns the GPU label of a device, by the process's number. A process that made
// no call since it was attached to has no number that is known, and often one GPU.
func (g *gpus) heapLabel(id event.Process, device int32, only bool) string {
	label := g.GPU(&ledger.SiteKey{Proc: id, Kind: event.KindTensor, Device: device})
	if labels := g.accounts.Labels(id); label == unknownGPU && only && len(labels) == 1 {
		return labels[0]
	}
	return label
}

// maxDevices bounds the devices of one heap: a damaged one may have any number.
const maxDevices = 64

// hold adds the readings to a snapshot, and divides its samples by holder.
func (v *View) hold(s *snapshot.Snapshot) {
	if len(v.heaps) == 0 {
		return
	}
	d := divider{snapshot: s}
	for _, x := range v.heaps {
		at := func(monotonic uint64) time.Time { return v.trace.Boot.Add(time.Duration(monotonic)) }
		h := snapshot.Heap{PID: int(x.id.PID), Process: v.names[x.id], Begin: at(x.reading.Begin), End: at(x.reading.End), Reading: x.reading}
		s.Heaps = append(s.Heaps, h)
		d.add(&h, &x)
	}
	if v.hasLive {
		d.divide()
	}
	v.divided = d.origins
	if !v.wantsLive {
		s.Live = nil
	}
}
