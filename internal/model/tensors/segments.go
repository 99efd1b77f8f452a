package tensors

import (
	"cmp"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/keyed"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// Sizes that PyTorch's caching allocator goes by, in bytes: kMinBlockSize,
// kSmallBuffer and kLargeBuffer of c10/core/AllocatorConfig.h (before 2.8 of
// c10/cuda/CUDACachingAllocator.cpp). The last one can be set (large_segment_size_mb).
const (
	blockUnit    = 512      // blocks begin and end at multiples of it
	smallSegment = 2 << 20  // of the small pool, and a page of an expandable one
	largeSegment = 20 << 20 // for less than 10 MiB, and a page of an expandable one
)

// A Class is segments that the allocator took from CUDA in one way.
type Class uint8

// Classes of segments.
const (
	Small           Class = iota // of 2 MiB, for requests up to 1 MiB (kSmallSize)
	Large                        // of 20 MiB, for requests below 10 MiB
	Larger                       // for a request each at first, rounded up to 2 MiB
	ExpandableSmall              // ranges of mapped pages of 2 MiB, for requests up to 1 MiB
	ExpandableLarge              // ranges of mapped pages of 20 MiB or what is set, for all others
	NumClasses
)

// String returns the name that outputs use.
func (c Class) String() string {
	return [...]string{"small", "large", "larger", "expandable_small", "expandable_large"}[c]
}

// Expandable returns whether segments of c are ranges of pages.
func (c Class) Expandable() bool { return c == ExpandableSmall || c == ExpandableLarge }

// Small returns whether segments of c are for requests up to 1 MiB alone, the others for
// larger ones alone.
func (c Class) Small() bool { return c == Small || c == ExpandableSmall }

// classOf returns the class of an extent. What another allocator that is plugged in
// takes from the VMM API (ncclMemAlloc) looks like pages.
func classOf(x *extent) Class {
	size := x.to - x.from
	switch paged := x.pool.Site.Kind == event.KindVMM; {
	case paged && size <= smallSegment:
		return ExpandableSmall
	case paged:
		return ExpandableLarge
	case size == smallSegment:
		return Small
	case size == largeSegment:
		return Large
	}
	return Larger
}

// Segments are those of one class that a process's allocator has on one device.
type Segments struct {
	Device  int32 // CUDA ordinal inside the process, or event.NoDevice
	Private holder.PoolID
	Class   Class
	Count   int // of an expandable class: ranges of pages without a gap
	// Reserved bytes are all that they have, Allocated those in tensors.
	Reserved, Allocated int64
	// Blocks are the free blocks, and Largest is the size of the largest one. A free
	// block is what lies between two tensors, or the end of a segment: the allocator
	// merges what is free side by side (try_merge_blocks). It is in whole units of 512
	// bytes, so that what is free may be more than all blocks.
	Blocks  int
	Largest int64
	// Releasable bytes are in segments, or pages, without a tensor: what empty_cache
	// gives back. It frees a block that is all of its segment (release_blocks), and
	// unmaps the pages that lie whole in a free block (unmap_block). Of a private pool
	// it does so only when no graph and no MemPool refers to the pool any more
	// (graph_pools_freeable), which is not known.
	Releasable int64
}

// A span is a tensor's addresses.
type span struct {
	from, to uint64
	device   int32
}

// Segments returns the segments that a process's allocator took from CUDA, as far as
// that was seen and it handed out of them, by device, private pool and class. A segment
// is of one stream, and serves no other; which one is not known. A tensor that was freed
// while another stream used it (record_stream) counts as free.
// Those of a process that has ended are as they were then.
func (l *Ledger) Segments(proc event.Process) []Segments {
	switch p := l.lookup(proc); {
	case len(p.memory.pools) == 0:
		return nil
	case p.ended:
		return p.last
	default:
		return p.segments()
	}
}

func (p *process) segments() []Segments {
	spans := make([]span, 0, len(p.tensors))
	for addr, t := range p.tensors {
		spans = append(spans, span{addr, addr + t.size, t.device})
	}
	// The shared sort of package sorting takes twice as long, under the tracer's lock.
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	w := walk{spans: spans, sums: map[segmentKey]*Segments{}}
	p.memory.extents.Ascend(func(x *extent) bool {
		if x.pool.HandedExtents > 0 {
			w.extent(x)
		}
		return true
	})
	w.end()
	return sorted(w.sums)
}

// sorted returns segments by device, private pool and class.
func sorted(sums map[segmentKey]*Segments) []Segments {
	out := make([]Segments, 0, len(sums))
	for _, s := range sums {
		out = append(out, *s)
	}
	sorting.Stable(out, func(a, b Segments) int {
		return cmp.Or(cmp.Compare(a.Device, b.Device), a.Private.Compare(b.Private), cmp.Compare(a.Class, b.Class))
	})
	return out
}

// Shown returns what outputs show of s.
func (s *Segments) Shown() snapshot.Segments {
	out := snapshot.Segments{
		Private: s.Private.String(), Class: s.Class.String(), Expandable: s.Class.Expandable(), Small: s.Class.Small(), Count: int64(s.Count),
		Reserved: s.Reserved, Allocated: s.Allocated, Cached: s.Reserved - s.Allocated,
		FreeBlocks: int64(s.Blocks), LargestFree: s.Largest, Releasable: s.Releasable,
	}
	if out.Private != "" {
		out.Releasable, out.Kept = 0, s.Releasable
	}
	return out
}

// OfBlocks returns the segments of an allocator whose blocks are known, by private pool and class. What another
// stream may still use counts as allocated.
func OfBlocks(a *holder.Allocator) []Segments {
	sums := map[segmentKey]*Segments{}
	for blocks := range a.Segments() {
		s := segmentOf(blocks)
		s.Device = a.Device
		s.addTo(sums)
	}
	return sorted(sums)
}

// segmentOf returns the segment that has blocks.
func segmentOf(blocks []holder.Block) Segments {
	first, last := &blocks[0], &blocks[len(blocks)-1]
	s := Segments{Private: first.Private, Class: Larger, Count: 1, Reserved: int64(last.Address + last.Size - first.Address)}
	page := uint64(largeSegment)
	switch {
	case first.Expandable && first.Small:
		s.Class, page = ExpandableSmall, smallSegment
	case first.Expandable:
		s.Class = ExpandableLarge
	case first.Small:
		s.Class = Small
	case s.Reserved == largeSegment:
		s.Class = Large
	}
	for i := range blocks {
		b := &blocks[i]
		switch {
		case b.State != holder.Free:
			s.Allocated += int64(b.Size)
			continue
		case s.Class.Expandable():
			from, to := b.Address-first.Address, b.Address+b.Size-first.Address
			s.Releasable += int64((max(to/page, (from+page-1)/page) - (from+page-1)/page) * page)
		case len(blocks) == 1:
			s.Releasable += int64(b.Size)
		}
		s.Blocks++
		s.Largest = max(s.Largest, int64(b.Size))
	}
	return s
}

// A walk goes through a process's segments in the order of their addresses.
type walk struct {
	spans   []span // those that do not begin before the segment
	covered uint64 // everything below is in tensors or was looked at
	segment Segments
	from    uint64 // of the segment
	to      uint64 // up to where pages have joined it
	page    uint64 // their size
	sums    map[segmentKey]*Segments
}

type segmentKey struct {
	device  int32
	private holder.PoolID
	class   Class
}

// extent adds the next extent: a segment, or a page of one.
func (w *walk) extent(x *extent) {
	class := classOf(x)
	if w.segment.Count == 0 || !class.Expandable() || class != w.segment.Class || x.from != w.to || x.to-x.from != w.page || x.private != w.segment.Private {
		w.end()
		w.segment = Segments{Device: event.NoDevice, Private: x.private, Class: class, Count: 1}
		w.from = x.from
	}
	s := &w.segment
	w.to, w.page = x.to, x.to-x.from
	if s.Device == event.NoDevice {
		s.Device = x.pool.Site.Device
	}
	s.Reserved += int64(x.to - x.from)
	s.Allocated += int64(x.used)
	if x.used == 0 {
		s.Releasable += int64(x.to - x.from)
	}
}

// end finds the free blocks of the segment, and adds it to its class.
func (w *walk) end() {
	s := &w.segment
	if s.Count == 0 {
		return
	}
	w.covered = max(w.covered, w.from)
	n := 0
	for ; n < len(w.spans) && w.spans[n].from < w.to; n++ {
		x := w.spans[n]
		if s.Device == event.NoDevice && x.from >= w.from {
			s.Device = x.device
		}
		w.free(x.from)
		w.covered = max(w.covered, x.to)
	}
	w.spans = w.spans[n:]
	w.free(w.to)
	s.addTo(w.sums)
	*s = Segments{}
}

// addTo adds s to those of its class.
func (s *Segments) addTo(sums map[segmentKey]*Segments) {
	sum := keyed.At(sums, segmentKey{s.Device, s.Private, s.Class})
	sum.Device, sum.Private, sum.Class = s.Device, s.Private, s.Class
	sum.Add(s)
}

// free counts the block from what is covered to an address, if there is one.
func (w *walk) free(to uint64) {
	if to <= w.covered {
		return
	}
	from := (w.covered - w.from + blockUnit - 1) / blockUnit * blockUnit
	if end := (to - w.from) / blockUnit * blockUnit; end > from {
		w.segment.Blocks++
		w.segment.Largest = max(w.segment.Largest, int64(end-from))
	}
}

// Add adds what other has to s.
func (s *Segments) Add(other *Segments) {
	s.Count += other.Count
	s.Reserved += other.Reserved
	s.Allocated += other.Allocated
	s.Blocks += other.Blocks
	s.Largest = max(s.Largest, other.Largest)
	s.Releasable += other.Releasable
}
