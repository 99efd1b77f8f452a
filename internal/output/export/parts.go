package export

import (
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// The parts of samples are what a column tells apart that no sample has one value of. A
// profile does not have what they are made of: a recording does.
type parts struct {
	face *face // what pages show of them
	// lacks are the figures that are not known of parts.
	lacks []string
	// of returns the parts of the samples of s, and the column's value of each.
	of func(s *snapshot.Snapshot) ([]*snapshot.Sample, map[*snapshot.Sample]string)
}

// parted returns the index of the column that tells parts apart, -1 for none.
func (by By) parted() int {
	return slices.IndexFunc(by, func(c column) bool { return c.parts != nil })
}

// Parts tells whether by needs a recording, of which Snapshot.Live and Freed are asked for.
func (by By) Parts() bool { return by.parted() >= 0 }

// samples returns by as it is for the samples of s, and those: in parts, where by tells
// parts apart.
func (by By) samples(s *snapshot.Snapshot) (By, []*snapshot.Sample) {
	i := by.parted()
	if i < 0 {
		return by, pointers(s.Samples)
	}
	samples, value := by[i].parts.of(s)
	by = slices.Clone(by)
	by[i].of = func(x *snapshot.Sample) string { return value[x] }
	return by, samples
}

// face returns what is shown by o.By.
func (o Options) face() *face {
	i := o.By.parted()
	switch {
	case i >= 0:
		return o.By[i].parts.face
	case o.Turnover:
		return &turnover
	}
	return &holdings
}

// figures returns those that are known by o.By.
func (o Options) figures() []figure {
	all, i := figures(), o.By.parted()
	if i < 0 {
		return all
	}
	return slices.DeleteFunc(all, func(f figure) bool { return slices.Contains(o.By[i].parts.lacks, f.key) })
}
