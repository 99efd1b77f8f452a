package memoryviz

import (
	"github.com/google/btree"
)

// A span is addresses [from, to) of a device that are in segments.
type span struct {
	from, to uint64
	made     bool // nobody saw it come: it is there because blocks lie in it
}

// A cover is all that is in segments at one moment: spans that do not overlap.
type cover struct{ spans *btree.BTreeG[span] }

func newCover() cover {
	return cover{btree.NewG(16, func(a, b span) bool { return a.from < b.from })}
}

func (c cover) add(s span) { c.spans.ReplaceOrInsert(s) }

// over returns the spans that share an address with [from, to), in order.
func (c cover) over(from, to uint64) (out []span) {
	c.spans.DescendLessOrEqual(span{from: from}, func(s span) bool {
		if s.from < from && s.to > from {
			out = append(out, s)
		}
		return s.from == from
	})
	c.spans.AscendRange(span{from: from}, span{from: to}, func(s span) bool {
		out = append(out, s)
		return true
	})
	return out
}

// remove takes [from, to) out of all spans.
func (c cover) remove(from, to uint64) {
	for _, s := range c.over(from, to) {
		c.spans.Delete(s)
		if s.from < from {
			c.add(span{s.from, from, s.made})
		}
		if s.to > to {
			c.add(span{to, s.to, s.made})
		}
	}
}

// gaps returns what of [from, to) is in no span.
func (c cover) gaps(from, to uint64) (out []span) {
	for _, s := range c.over(from, to) {
		if s.from > from {
			out = append(out, span{from: from, to: s.from})
		}
		from = max(from, s.to)
	}
	if from < to {
		out = append(out, span{from: from, to: to})
	}
	return out
}

// around returns a gap, made wider up to multiples of unit, and no further than to the
// spans beside it.
func (c cover) around(gap span, unit uint64) span {
	from, to := gap.from/unit*unit, (gap.to+unit-1)/unit*unit
	for _, free := range c.gaps(from, to) {
		if free.from <= gap.from && gap.to <= free.to {
			return free
		}
	}
	return gap
}
