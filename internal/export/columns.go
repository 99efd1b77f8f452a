package export

import (
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
)

// columns are the values that a table of a page has. The first one, if it is
// of bytes, has its share of its class beside it.
type columns []*snapshot.Value

var (
	held   = columnsOf("inuse_space", "inuse_objects")
	atPeak = columnsOf("peak_space")
	failed = columnsOf("failed_objects", "failed_space")
)

func columnsOf(names ...string) (c columns) {
	for _, name := range names {
		i := slices.IndexFunc(snapshot.AllValues[:], func(v snapshot.Value) bool { return v.Name == name })
		c = append(c, &snapshot.AllValues[i])
	}
	return c
}

// succeeded has every value that is not of failed calls, bytes in use first.
func succeeded() (c columns) {
	for i := range snapshot.AllValues {
		if v := &snapshot.AllValues[i]; !v.Failed {
			c = append(c, v)
		}
	}
	slices.Reverse(c)
	return c
}

func (c columns) header() (header []string) {
	for i, v := range c {
		header = append(header, ">"+v.Title)
		if i == 0 && v.Unit == snapshot.Bytes {
			header = append(header, ">OF CLASS")
		}
	}
	return header
}

func (c columns) first(v *snapshot.Values) int64 { return *c[0].Of(v) }

// cells are for one row; all is what its class has in the first column.
func (c columns) cells(row *snapshot.Values, all int64) (cells []string) {
	for i, v := range c {
		n := *v.Of(row)
		if v.Unit == snapshot.Count {
			cells = append(cells, bytefmt.Count(n))
			continue
		}
		cells = append(cells, bytefmt.Format(n))
		if i == 0 {
			cells = append(cells, bytefmt.Percent(n, all))
		}
	}
	return cells
}

// sum returns the values of a key, zero at first.
func sum[K comparable](sums map[K]*snapshot.Values, k K) *snapshot.Values {
	v := sums[k]
	if v == nil {
		v = new(snapshot.Values)
		sums[k] = v
	}
	return v
}
