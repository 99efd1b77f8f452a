package torchsnapshot

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/google/btree"
)

// rules say how the allocator cuts blocks: see allocator.Settings of package whatif.
type rules struct {
	expandable bool
	maxSplit   uint64     // bytes, 0 for no limit
	divisions  [16]uint64 // into how many parts the interval from 2^i MiB on is divided, for rounding
}

// Sizes of PyTorch's allocator, in bytes.
const (
	unit         = 512     // of blocks
	smallRequest = 1 << 20 // blocks of large segments are not cut for less
	smallSegment = 2 << 20
)

// rounded returns the size of the block that a request needs (round_size).
func (r *rules) rounded(size uint64) uint64 {
	n := r.divisions[min(max(bits.Len64(size)-1-20, 0), len(r.divisions)-1)]
	if n > 1 && size > unit*n && n <= 1<<20 {
		floor := uint64(1) << (bits.Len64(size) - 1)
		part := max(floor>>(bits.Len64(n)-1), 1)
		return floor + (size-floor+part-1)/part*part
	}
	return max(unit, (size+unit-1)/unit*unit)
}

// A before is what a GPU had when its history began.
type before struct {
	segments []*segment
	blocks   []*block
	odd      int // steps that do not fit what was there
}

// past is the state of a GPU while its steps are undone.
type past struct {
	rules
	device *device
	// Trees of pointers share the code of other ones.
	segments *btree.BTreeG[*segment]
	live     *btree.BTreeG[*block]
	odd      int
}

// unwind undoes the steps of a device and returns what was there before. It sets the size of each
// step's block: of one that is live at the end the file says it. Of another one it is the rounded
// request, or all up to what was the next live block when it was made, if the allocator would not have
// cut the rest off. When a block from before the history was made is not known: it ends where the next
// tensor was made after it, or has the size that it would have when the history began.
func (d *device) unwind(r rules) before {
	p := past{
		rules: r, device: d,
		segments: btree.NewG(16, func(a, b *segment) bool { return a.address < b.address }),
		live:     btree.NewG(16, func(a, b *block) bool { return a.address < b.address }),
		odd:      d.oddEnd,
	}
	for i := range d.segments {
		one := d.segments[i]
		p.segments.ReplaceOrInsert(&one)
	}
	for i := range d.blocks {
		one := d.blocks[i]
		p.live.ReplaceOrInsert(&one)
	}
	for i := range slices.Backward(d.steps) {
		p.undo(i)
	}
	var out before
	p.segments.Ascend(func(s *segment) bool { out.segments = append(out.segments, s); return true })
	p.live.Ascend(func(b *block) bool {
		if b.freed > 0 {
			b.size = p.settle(b)
		}
		b.pool = p.privatePool(b.address)
		out.blocks = append(out.blocks, b)
		return true
	})
	out.odd = p.odd
	return out
}

// undo undoes one step.
func (p *past) undo(i int) {
	s := &p.device.steps[i]
	switch s.action {
	case alloc:
		b, ok := p.live.Delete(&block{address: s.address})
		switch {
		case !ok:
			s.block = p.rounded(s.size)
			p.odd++
		case b.freed > 0:
			s.block = p.settle(b)
		default:
			s.block = b.size
		}
		s.pool = cmp.Or(s.pool, p.privatePool(s.address))
		p.reveal(s.address)
	case free:
		s.block = p.rounded(s.size)
		if _, ok := p.live.ReplaceOrInsert(&block{address: s.address, requested: s.size, stream: s.stream, freed: i + 1}); ok {
			p.odd++
		}
	case segmentAlloc:
		if _, ok := p.segments.Delete(&segment{address: s.address}); !ok {
			p.odd++
		}
	case segmentFree:
		p.segments.ReplaceOrInsert(&segment{address: s.address, size: s.size, small: s.size <= smallSegment, stream: s.stream, pool: s.pool, own: s.own})
	case segmentMap:
		p.unmap(s.address, s.size)
	case segmentUnmap:
		p.mapped(s)
	}
}

// reveal learns where the block before an address ends at which a tensor was made: what is free side by
// side is one block, of which a tensor takes the beginning.
func (p *past) reveal(at uint64) {
	home := p.around(at)
	if home == nil {
		return
	}
	p.live.DescendLessOrEqual(&block{address: at - 1}, func(b *block) bool {
		size := p.rounded(b.requested)
		if n := at - b.address; b.freed > 0 && b.address >= home.address && n >= size && n-size <= smallRequest {
			b.size = n
		}
		return false
	})
}

// settle gives the step that freed a block the size that the block had, and returns it.
func (p *past) settle(b *block) uint64 {
	s := &p.device.steps[b.freed-1]
	if s.block = b.size; s.block == 0 {
		s.block = p.size(b)
	}
	return s.block
}

// size returns that of a block which is made now.
func (p *past) size(b *block) uint64 {
	size := p.rounded(b.requested)
	home := p.around(b.address)
	if home == nil {
		p.odd++
		return size
	}
	end := home.address + home.size
	p.live.AscendGreaterOrEqual(&block{address: b.address + 1}, func(next *block) bool {
		end = min(end, next.address)
		return false
	})
	gap := end - b.address
	if gap < size {
		p.odd++
		return size
	}
	rest := gap - size
	switch {
	case rest == 0,
		(home.small || home.expandable) && rest >= unit,
		!home.small && !home.expandable && rest > smallRequest && (p.maxSplit == 0 || size < p.maxSplit):
		return size
	}
	return gap
}

// around returns the segment that an address lies in, nil for none.
func (p *past) around(at uint64) (home *segment) {
	p.segments.DescendLessOrEqual(&segment{address: at}, func(s *segment) bool {
		if at-s.address < s.size {
			home = s
		}
		return false
	})
	return home
}

// privatePool returns the private pool of the segment that an address lies in, as far as the file shows it.
func (p *past) privatePool(at uint64) pool {
	if home := p.around(at); home != nil {
		return home.pool
	}
	return pool{}
}

// unmap takes a range out of expandable segments.
func (p *past) unmap(from, size uint64) {
	home := p.around(from)
	to := from + size
	if home == nil || home.address+home.size < to {
		p.odd++
		return
	}
	p.segments.Delete(home)
	for _, rest := range [][2]uint64{{home.address, from}, {to, home.address + home.size}} {
		if rest[0] < rest[1] {
			s := *home
			s.address, s.size = rest[0], rest[1]-rest[0]
			p.segments.ReplaceOrInsert(&s)
		}
	}
}

// mapped adds a range to expandable segments, joined with what is beside it.
func (p *past) mapped(x *step) {
	s := &segment{address: x.address, size: x.size, expandable: true, stream: x.stream, pool: x.pool, own: x.own}
	if low := p.around(s.address - 1); low != nil && low.expandable && low.address+low.size == s.address {
		p.segments.Delete(low)
		s.address, s.size, s.small, s.pool, s.frames = low.address, low.size+s.size, low.small, low.pool, low.frames
	}
	if high, ok := p.segments.Get(&segment{address: s.address + s.size}); ok && high.expandable {
		p.segments.Delete(high)
		s.size, s.small, s.pool = s.size+high.size, high.small, high.pool
	}
	p.segments.ReplaceOrInsert(s)
}

// cuts returns the addresses at which ranges of expandable segments begin or end, in order.
func (d *device) cuts(first []*segment) []uint64 {
	var all []uint64
	for _, s := range d.steps {
		if s.action == segmentMap || s.action == segmentUnmap {
			all = append(all, s.address, s.address+s.size)
		}
	}
	for _, s := range first {
		if s.expandable {
			all = append(all, s.address, s.address+s.size)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
