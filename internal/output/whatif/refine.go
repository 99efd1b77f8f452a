package whatif

import "github.com/gpumemtrace/gpumemtrace/internal/model/allocator"

// small is the most that PyTorch serves from small segments, whose blocks are always cut, in units.
const small = 1 << 20 / unit

// refine replaces the sizes of blocks by those of requests, as far as they are known.
// PyTorch reports the size of a block. That is the size of the request if the block was
// cut. A block that served whole takes the size that its stack requests most often
// elsewhere, and else that other stacks do, if the block may have that much to spare.
func (x *Run) refine() {
	bySite := map[uint32]map[uint32]int{}
	all := map[uint32]int{}
	whole := 0
	for i := range x.Requests {
		q := &x.Requests[i]
		switch {
		case q.Op != allocator.Make || q.Is(allocator.Lacked):
		case x.spare(q.Tensor) > 0:
			whole++
		case q.Units > small:
			site := x.site(q.Tensor)
			if bySite[site] == nil {
				bySite[site] = map[uint32]int{}
			}
			bySite[site][q.Units]++
			all[q.Units]++
		}
	}
	if whole == 0 {
		return
	}
	for i := range x.Requests {
		q := &x.Requests[i]
		spare := x.spare(q.Tensor)
		if q.Op != allocator.Make || spare == 0 {
			continue
		}
		n := likely(bySite[x.site(q.Tensor)], q.Units, spare)
		if n == 0 {
			n = likely(all, q.Units, spare)
		}
		if n > 0 {
			x.Spare[q.Tensor] -= uint16(q.Units - n)
			q.Units = n
		}
	}
}

// spare returns by how many units the block of a tensor may exceed the request.
func (x *Run) spare(tensor uint32) uint32 {
	if int(tensor) < len(x.Spare) {
		return uint32(x.Spare[tensor])
	}
	return 0
}

// likely returns the most frequent of sizes that a block may serve whole which has so many units, up
// to some of them to spare; 0 for none.
func likely(sizes map[uint32]int, block, spare uint32) (best uint32) {
	count := 0
	for n, k := range sizes {
		if n <= block && n+spare >= block && (k > count || k == count && n > best) {
			best, count = n, k
		}
	}
	return best
}

// site returns the stack of a tensor, 0 for none.
func (x *Run) site(tensor uint32) uint32 {
	if int(tensor) < len(x.Stacks) {
		return x.Stacks[tensor]
	}
	return 0
}
