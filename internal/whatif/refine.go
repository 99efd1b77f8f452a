package whatif

import (
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/whatif/allocator"
)

// small is the most that PyTorch serves from small segments, whose blocks are always cut, in units.
const small = 1 << 20 / unit

// refine replaces the sizes of blocks by those of requests, as far as they are known.
// PyTorch reports the size of a block. That is the size of the request if the block has
// nothing to spare. Another one takes the size of such a request if it may have that much to
// spare: of those of its stack the one that is nearest in the run, before or after, and else
// the nearest of any stack.
func (x *Run) refine() {
	if x.Exact {
		return
	}
	known := func(q *allocator.Request) bool {
		return q.Op == allocator.Make && !q.Is(allocator.Lacked) && q.Units > small && x.spare(q.Tensor) == 0
	}
	var sizes []uint32
	for i := range x.Requests {
		if q := &x.Requests[i]; known(q) {
			if k, ok := slices.BinarySearch(sizes, q.Units); !ok {
				sizes = slices.Insert(sizes, k, q.Units)
			}
		}
	}
	type place struct{ site, units uint32 }
	type near struct {
		units    uint32
		distance int
	}
	if x.Above == nil {
		x.Above = make([]uint16, len(x.Addresses))
	}
	seen, nearest := map[place]int{}, map[int]near{} // by request
	look := func(i int) {
		q := &x.Requests[i]
		site, spare := x.site(q.Tensor), x.spare(q.Tensor)
		if known(q) {
			seen[place{site, q.Units}], seen[place{anySite, q.Units}] = i, i
		}
		if q.Op != allocator.Make || spare == 0 {
			return
		}
		best, ok := nearest[i]
		from, _ := slices.BinarySearch(sizes, q.Units-min(spare, q.Units))
		for _, n := range sizes[from:] {
			if n > q.Units {
				break
			}
			at, found := seen[place{site, n}]
			d := max(i-at, at-i)
			if !found {
				at, found = seen[place{anySite, n}]
				d = len(x.Requests) + max(i-at, at-i)
			}
			if found && (!ok || d < best.distance) {
				best, ok = near{n, d}, true
			}
		}
		if ok {
			nearest[i] = best
		}
	}
	for i := range x.Requests {
		look(i)
	}
	clear(seen)
	for i := range slices.Backward(x.Requests) {
		look(i)
	}
	for i, n := range nearest {
		q := &x.Requests[i]
		x.Spare[q.Tensor] -= uint16(q.Units - n.units)
		x.Above[q.Tensor] = uint16(q.Units - n.units)
		q.Units = n.units
	}
}

// blocked gives requests the sizes of their blocks again, which Run.Check is about.
func (x *Run) blocked() {
	for i := range x.Requests {
		if q := &x.Requests[i]; q.Op == allocator.Make && int(q.Tensor) < len(x.Above) {
			q.Units += uint32(x.Above[q.Tensor])
		}
	}
	x.Above = nil
}

// anySite stands for all stacks.
const anySite = 1<<32 - 1

// spare returns by how many units the block of a tensor may exceed the request.
func (x *Run) spare(tensor uint32) uint32 {
	if int(tensor) < len(x.Spare) {
		return uint32(x.Spare[tensor])
	}
	return 0
}

// site returns the stack of a tensor, 0 for none.
func (x *Run) site(tensor uint32) uint32 {
	if int(tensor) < len(x.Stacks) {
		return x.Stacks[tensor]
	}
	return 0
}
