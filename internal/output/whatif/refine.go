package whatif

import "github.com/gpumemtrace/gpumemtrace/internal/model/allocator"

// slack is by how much a block of PyTorch's may exceed the request that it serves, in
// units: of large blocks it cuts off only what exceeds 1 MiB.
const slack = 1 << 20 / unit

// refine replaces the sizes of blocks by those of requests, as far as they are known.
// PyTorch reports the size of a block. That is the size of the request if the block was
// cut. A block that served whole takes the size that its stack requests most often
// elsewhere, and else that other stacks do, if it is within the slack.
func (x *Run) refine() {
	bySite := map[uint32]map[uint32]int{}
	all := map[uint32]int{}
	whole := 0
	for i := range x.Requests {
		q := &x.Requests[i]
		switch {
		case q.Op != allocator.Make || q.Is(allocator.Lacked):
		case q.Is(allocator.Whole):
			whole++
		case q.Units > slack:
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
		if q := &x.Requests[i]; q.Op == allocator.Make && q.Is(allocator.Whole) {
			if n := likely(bySite[x.site(q.Tensor)], q.Units); n > 0 {
				q.Units = n
			} else if n := likely(all, q.Units); n > 0 {
				q.Units = n
			}
		}
	}
}

// likely returns the most frequent of sizes that a block of so many units may serve
// whole, 0 for none.
func likely(sizes map[uint32]int, block uint32) (best uint32) {
	count := 0
	for n, k := range sizes {
		if n <= block && n+slack >= block && (k > count || k == count && n > best) {
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
