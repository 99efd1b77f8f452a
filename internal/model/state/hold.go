package state

import (
	"cmp"
	"fmt"
	"slices"

	holders "github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// FromHeap is the label of a category that was read from the program's heap, and does not
// follow from a stack.
const FromHeap = "heap"

// A divider divides samples by the object that holds what was allocated. What a holder has
// of a sample is a sample of its own, with the same stack.
type divider struct {
	snapshot *snapshot.Snapshot
	heaps    map[int]*divided // by PID
	origins  origins
}

// Origins say which samples were divided.
type origins struct {
	first int   // index of the first sample that is a part of another
	of    []int // indexes of those others
}

// sites yields the call sites of parts of samples, and before them none for each sample
// that has none.
func (o origins) sites(v *View, yield func(ledger.SiteKey) bool) {
	n := len(v.sites) + len(v.tensors)
	if len(o.of) == 0 {
		return
	}
	for range o.first - n {
		if !yield(ledger.SiteKey{}) {
			return
		}
	}
	for _, i := range o.of {
		var key ledger.SiteKey
		switch {
		case i < len(v.sites):
			key = v.sites[i].SiteKey
		case i < n:
			key = v.tensors[i-len(v.sites)].SiteKey
		}
		if !yield(key) {
			return
		}
	}
}

// part appends a sample that is a part of another.
func (d *divider) part(of int, x snapshot.Sample) (at int) {
	at = len(d.snapshot.Samples)
	d.snapshot.Samples = append(d.snapshot.Samples, x)
	d.origins.of = append(d.origins.of, of)
	return at
}

// divided is the heap of one process.
type divided struct {
	*snapshot.Heap
	*heapView
	at map[uint64]*holders.Storage // by address, on GPUs
	// found are the storages that a live allocation was found for.
	found map[*holders.Storage]bool
}

func (d *divider) add(h *snapshot.Heap, v *heapView) {
	x := &divided{Heap: h, heapView: v, at: make(map[uint64]*holders.Storage, len(h.Reading.Storages)), found: map[*holders.Storage]bool{}}
	for i := range h.Reading.Storages {
		if s := &h.Reading.Storages[i]; s.OnGPU() && s.Bytes > 0 {
			x.at[s.Address] = s
		}
	}
	if d.heaps == nil {
		d.heaps = map[int]*divided{}
	}
	d.heaps[h.PID] = x
}

// A share of a sample is what one holder has of it.
type heldPart struct {
	sample int
	holder string
	module string
	role   holders.Role
}

// divide divides the samples of live allocations, and what was there before the trace: every
// tensor since then has a row.
func (d *divider) divide() {
	s := d.snapshot
	d.origins.first = len(s.Samples)
	parts := map[heldPart]int{} // indexes into samples
	for i := range s.Live {
		a := &s.Live[i]
		sample := &s.Samples[a.Sample]
		h := d.heaps[sample.PID]
		if h == nil || a.Address == 0 || sample.Kind == event.KindCached.String() || a.Time.After(h.End) {
			continue
		}
		st := h.at[a.Address]
		if st == nil || !fits(st, a.Size, sample.Kind == event.KindTensor.String()) {
			continue
		}
		h.found[st] = true
		key := heldPart{a.Sample, label(st), st.Module, st.Role}
		at, ok := parts[key]
		if !ok {
			at = d.part(a.Sample, heldBy(sample, st))
			parts[key] = at
		}
		from, to := &s.Samples[key.sample].Values, &s.Samples[at].Values
		moved := snapshot.Values{InuseObjects: min(1, max(from.InuseObjects, 0)), InuseBytes: min(a.Size, max(from.InuseBytes, 0))}
		moved.AllocObjects, moved.AllocBytes = min(moved.InuseObjects, max(from.AllocObjects, 0)), min(moved.InuseBytes, max(from.AllocBytes, 0))
		from.Sub(&moved)
		to.Add(&moved)
		a.Sample = at
	}
	d.before()
	d.note()
}

// fits reports whether a storage may be what an allocation was made for. PyTorch's
// allocator rounds to 512 bytes, and leaves up to a MiB of a block with a tensor.
func fits(s *holders.Storage, size int64, tensor bool) bool {
	left := size - int64(min(s.Bytes, 1<<62))
	if tensor {
		return left >= 0 && left <= 1<<20
	}
	return left >= 0 && left < 512
}

// label returns the path to a storage. Parameters, and what belongs to them, are as many
// as the model has; of other paths those are one label that differ in numbers alone.
func label(s *holders.Storage) string {
	switch s.Role {
	case holders.Parameter, holders.Buffer, holders.Gradient, holders.OptimizerState:
		return s.Name()
	}
	return holders.Alike(s.Name())
}

// heldBy returns the sample of what a storage's holder has of another, with no values.
func heldBy(of *snapshot.Sample, s *holders.Storage) snapshot.Sample {
	x := snapshot.Sample{Stack: of.Stack, Labels: of.Labels}
	x.Holder = label(s)
	x.ModulePath = cmp.Or(s.Module, x.ModulePath)
	if s.Role != holders.NoRole {
		x.Category, x.CategoryFrom = s.Role.String(), FromHeap
	}
	return x
}

// before divides what was there before the trace: what the allocator says of its tensors
// from then, and where it says nothing all that was allocated.
func (d *divider) before() {
	s := d.snapshot
	type place struct {
		pid int
		gpu string
	}
	told := map[place]bool{}
	for _, line := range []string{LineOldTensors, LineBefore} {
		for i := range d.origins.first {
			x := &s.Samples[i]
			if at := (place{x.PID, x.GPU}); x.Frames()[0].Lines[0].Function == line && !told[at] {
				told[at] = true
				d.older(i)
			}
		}
	}
}

// older divides tensors from before the trace, by the storages that no allocation since
// then was found for. A storage has the block that the allocator has for it, if that was read.
func (d *divider) older(sample int) {
	s := d.snapshot
	h := d.heaps[s.Samples[sample].PID]
	if h == nil {
		return
	}
	taken := d.ranges(h.PID)
	var blocks, segments []span // of the allocator: what it has handed out, and older segments
	for i := range h.reading.Allocators {
		for _, b := range h.reading.Allocators[i].Blocks {
			if b.State == holders.Allocated {
				blocks = append(blocks, span{b.Address, b.Address + b.Size})
			}
		}
	}
	sortSpans(blocks)
	for _, x := range h.older {
		segments = append(segments, span{x.from, x.to})
	}
	sortSpans(segments)
	var left []*holders.Storage
	for _, st := range h.at {
		if !h.found[st] && h.gpus[st.Device] == s.Samples[sample].GPU && !overlaps(taken, st.Address, st.Address+st.Bytes) &&
			(len(blocks) == 0 || overlaps(segments, st.Address, st.Address+st.Bytes)) {
			left = append(left, st)
		}
	}
	slices.SortFunc(left, func(a, b *holders.Storage) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Address, b.Address))
	})
	parts := map[heldPart]int{}
	for _, st := range left {
		bytes := int64(min(st.Bytes, 1<<62)+511) &^ 511
		if len(blocks) > 0 {
			i, _ := slices.BinarySearchFunc(blocks, st.Address, func(b span, at uint64) int { return cmp.Compare(b.end, at+1) })
			if i == len(blocks) || st.Address < blocks[i].begin {
				continue // freed since it was read, or shared with a block that has its largest storage
			}
			bytes = int64(min(blocks[i].end-blocks[i].begin, 1<<62))
			blocks[i].begin = blocks[i].end
		}
		if bytes > s.Samples[sample].InuseBytes {
			continue // freed since it was read
		}
		key := heldPart{sample, label(st), st.Module, st.Role}
		at, ok := parts[key]
		if !ok {
			x := heldBy(&s.Samples[sample], st)
			x.Stack = append(slices.Clone(s.Samples[sample].Stack), synthetic(key.holder))
			at = d.part(sample, x)
			parts[key] = at
		}
		from, to := &s.Samples[sample].Values, &s.Samples[at].Values
		moved := snapshot.Values{InuseBytes: bytes, PeakBytes: min(bytes, max(from.PeakBytes, 0))}
		from.Sub(&moved)
		to.Add(&moved)
		to.InuseObjects++
	}
}

// A span is where a live allocation lies.
type span struct{ begin, end uint64 }

// ranges returns where the live tensors of a process lie, in order.
func (d *divider) ranges(pid int) (out []span) {
	for i := range d.snapshot.Live {
		a := &d.snapshot.Live[i]
		if x := &d.snapshot.Samples[a.Sample]; x.PID == pid && x.Kind == event.KindTensor.String() && a.Size > 0 {
			out = append(out, span{a.Address, a.Address + uint64(a.Size)})
		}
	}
	sortSpans(out)
	return out
}

func sortSpans(spans []span) {
	sorting.Stable(spans, func(a, b span) int { return cmp.Compare(a.begin, b.begin) })
}

// overlaps reports whether memory lies where one of the spans does.
func overlaps(spans []span, begin, end uint64) bool {
	i, _ := slices.BinarySearchFunc(spans, begin, func(x span, at uint64) int { return cmp.Compare(x.end, at+1) })
	return i < len(spans) && spans[i].begin < end
}

// maxHeapNotes bounds the processes whose readings notes name.
const maxHeapNotes = 10

// note says what comes from the heap.
func (d *divider) note() {
	s := d.snapshot
	s.Notes = slices.Clone(s.Notes)
	for i := range s.Heaps {
		if i == maxHeapNotes {
			s.Notes = append(s.Notes, fmt.Sprintf("the heaps of %d more processes were read", len(s.Heaps)-i))
			break
		}
		h := &s.Heaps[i]
		s.Notes = append(s.Notes, fmt.Sprintf("holders of process %d, and categories with category_from=%s, were read from its heap at %s; other categories follow from stacks",
			h.PID, FromHeap, h.End.UTC().Format("2006-01-02 15:04:05.000 UTC")))
	}
}
