package memoryviz

import (
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// The viewer goes through a trace backwards, from the segments and blocks at its end: it
// removes what was allocated and restores what was freed. At each step each block must lie
// in a segment, and each segment that is removed must be there.

// repairs are what the trace has beside a step that was seen.
type repairs struct {
	// moved are blocks that lie in another segment after the step than before it: they
	// end before it, and come again after it.
	moved []span
	// before and after are segments that nobody saw come or end.
	before, after []repair
}

// A repair is a segment that comes or ends.
type repair struct {
	from, to uint64
	ended    bool
	pages    bool // of an expandable segment
}

// oldSegment is the assumed least size of segments from before the trace, in bytes: that of
// PyTorch's smallest.
const oldSegment = 2 << 20

// A trace is the steps of a device, by their numbers in the layout.
type trace struct {
	steps    []uint32
	repairs  map[uint32]*repairs // by step
	segments cover
	blocks   cover // in segments of caching allocators
}

// traces returns those of the layout's devices.
func (d *document) traces() []trace {
	out := make([]trace, d.devices)
	for i := range out {
		out[i] = trace{repairs: map[uint32]*repairs{}, segments: newCover(), blocks: newCover()}
	}
	for i := range d.layout.Segments {
		s := &d.layout.Segments[i]
		t := &out[d.device[s.Place]]
		t.segments.add(span{s.Address, s.Address + s.Size, s.Source < 0})
		for _, b := range s.Blocks {
			if s.Pool {
				t.blocks.add(span{from: b.Address, to: b.Address + b.Size})
			}
		}
	}
	for i := range d.layout.Changes {
		step := d.layout.Change(i)
		if step.Action == snapshot.AllocationFailed || step.Address < maxNumber && step.Size <= maxNumber-step.Address {
			t := &out[d.device[step.Place]]
			t.steps = append(t.steps, uint32(i))
		}
	}
	for i := range out {
		out[i].repair(d.layout)
	}
	return out
}

// repair goes back through the steps and finds the repairs.
func (t *trace) repair(layout *snapshot.Layout) {
	for _, i := range slices.Backward(t.steps) {
		step := layout.Change(int(i))
		from, to := step.Address, step.Address+step.Size
		r := &repairs{}
		switch step.Action {
		case snapshot.SegmentEnded:
			lowest, highest := from, to
			for _, s := range t.segments.over(from, to) {
				r.after = append(r.after, repair{from: s.from, to: s.to})
				lowest, highest = min(lowest, s.from), max(highest, s.to)
				t.segments.spans.Delete(s)
			}
			r.moved = t.blocks.over(lowest, highest)
			t.segments.add(span{from: from, to: to})
			t.cover(r.moved, &r.before)
		case snapshot.SegmentCame:
			for _, gap := range t.segments.gaps(from, to) {
				r.after = append(r.after, repair{from: gap.from, to: gap.to, ended: true, pages: step.Expandable})
			}
			t.segments.remove(from, to)
			r.moved = t.blocks.over(from, to)
			t.cover(r.moved, &r.before)
		case snapshot.BlockEnded:
			t.cover([]span{{from: from, to: to}}, &r.after)
			t.blocks.add(span{from: from, to: to})
		case snapshot.BlockCame:
			t.cover([]span{{from: from, to: to}}, &r.after)
			t.blocks.spans.Delete(span{from: from})
		}
		if len(r.moved)+len(r.before)+len(r.after) > 0 {
			t.repairs[i] = r
		}
	}
}

// cover makes segments for the parts of blocks that are in none.
func (t *trace) cover(blocks []span, ended *[]repair) {
	for _, b := range blocks {
		for _, gap := range t.segments.gaps(b.from, b.to) {
			s := t.segments.around(gap, oldSegment)
			s.made = true
			t.segments.add(s)
			*ended = append(*ended, repair{from: s.from, to: s.to, ended: true})
		}
	}
}
