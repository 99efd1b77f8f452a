package state

import (
	"cmp"
	"slices"
)

// A row is one live allocation. It holds no pointer, so that the garbage
// collector need not look at millions of them.
type row struct {
	time, address, handle uint64
	size                  int64
	site                  int32 // index into View.sites
}

// byTime returns the order of rows, as indexes: by time, then by all else that they have.
func byTime(rows []row) []int32 {
	order := make([]int32, len(rows))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(i, j int32) int {
		a, b := &rows[i], &rows[j]
		if a.time != b.time {
			return cmp.Compare(a.time, b.time)
		}
		return cmp.Or(cmp.Compare(a.address, b.address), cmp.Compare(a.handle, b.handle), cmp.Compare(a.site, b.site), cmp.Compare(a.size, b.size))
	})
	return order
}
