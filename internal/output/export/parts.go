package export

import (
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// The parts of samples are for a column of which a sample has several values. They are made
// of figures that a recording has, and a profile has not.
type parts struct {
	face *face // the figures that pages show
	// lacks are the figures that parts do not have.
	lacks []string
	// of makes the parts of the samples of s: part makes one of a sample, whose value in the column is name,
	// unless v is zero.
	of func(s *snapshot.Snapshot, part func(of *snapshot.Sample, name string, v snapshot.Values) *snapshot.Sample)
}

// parted returns the index of the column that has parts, -1 for none.
func (by By) parted() int {
	return slices.IndexFunc(by, func(c column) bool { return c.parts != nil })
}

// Parts reports whether by needs a recording, with Snapshot.Live and Freed.
func (by By) Parts() bool { return by.parted() >= 0 }

// samples returns the samples of s, divided into parts if by has a column with parts, and by
// with the values of these samples. Columns beside others are empty if no sample has a value.
func (by By) samples(s *snapshot.Snapshot) (By, []*snapshot.Sample) {
	by, samples := slices.Clone(by), pointers(s.Samples)
	if i := by.parted(); i >= 0 {
		value := map[*snapshot.Sample]string{}
		by[i].of, samples = func(x *snapshot.Sample) string { return value[x] }, nil
		by[i].parts.of(s, func(of *snapshot.Sample, name string, v snapshot.Values) *snapshot.Sample {
			x := &snapshot.Sample{Stack: of.Stack, Labels: of.Labels, Values: v}
			if v != (snapshot.Values{}) {
				samples, value[x] = append(samples, x), name
			}
			return x
		})
	}
	for i := range by {
		if c := &by[i]; c.beside {
			c.empty = !slices.ContainsFunc(samples, func(s *snapshot.Sample) bool { return c.of(s) != "" })
		}
		if c := &by[i]; c.among != nil {
			all := c.among(samples)
			c.of = innermost(all)
			if c.all != nil {
				c.all = all
			}
		}
	}
	return by, samples
}

// face returns the figures that are shown by o.By.
func (o Options) face(s *snapshot.Snapshot) *face {
	i := o.By.parted()
	switch {
	case i >= 0:
		return o.By[i].parts.face
	case o.Turnover:
		return &turnover
	case o.Moment != nil || s.Meta.Moment != "":
		return &sized // the peaks of processes are at other moments
	case s.Meta.Peaks:
		return &peaks
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
