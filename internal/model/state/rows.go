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

// compare orders rows of one time, by all else that they have.
func (r *row) compare(other *row) int {
	return cmp.Or(cmp.Compare(r.address, other.address), cmp.Compare(r.handle, other.handle),
		cmp.Compare(r.site, other.site), cmp.Compare(r.size, other.size))
}

// A position is where the row of a time is in a slice.
type position struct {
	time uint64
	row  int32
}

// byTime returns the order of rows: by time, then as compare has it. It sorts by
// the digits of the times, the least first: for a million rows comparisons take
// several times as long.
func byTime(rows []row) []position {
	const bits = 11 // of a digit
	order := make([]position, len(rows))
	differ := uint64(0) // bits in which times do
	for i := range rows {
		order[i] = position{rows[i].time, int32(i)}
		differ |= rows[i].time ^ rows[0].time
	}
	sorted := make([]position, len(rows))
	for shift := 0; differ>>shift != 0; shift += bits {
		digit := func(p position) uint64 { return p.time >> shift & (1<<bits - 1) }
		var next [1 << bits]int // where the next of each digit goes
		for _, p := range order {
			next[digit(p)]++
		}
		at := 0
		for d, n := range next {
			next[d] = at
			at += n
		}
		for _, p := range order {
			d := digit(p)
			sorted[next[d]] = p
			next[d]++
		}
		order, sorted = sorted, order
	}
	for i := 0; i < len(order); {
		end := i + 1
		for end < len(order) && order[end].time == order[i].time {
			end++
		}
		if same := order[i:end]; len(same) > 1 {
			slices.SortFunc(same, func(a, b position) int { return rows[a.row].compare(&rows[b.row]) })
		}
		i = end
	}
	return order
}
