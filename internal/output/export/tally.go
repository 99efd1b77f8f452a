package export

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// A tallied is a row of a comparison: what each of several snapshots has of it.
type tallied struct {
	values []string // in each column
	sums   []snapshot.Values
}

// change is how many bytes the last snapshot has more than the first.
func (t *tallied) change() int64 { return t.sums[len(t.sums)-1].InuseBytes - t.sums[0].InuseBytes }

// objects is how many objects the last snapshot has more than the first.
func (t *tallied) objects() int64 {
	return t.sums[len(t.sums)-1].InuseObjects - t.sums[0].InuseObjects
}

// spread returns the least and the most bytes of a snapshot, and their places.
func (t *tallied) spread() (least, most int) {
	for i := range t.sums {
		if t.sums[i].InuseBytes < t.sums[least].InuseBytes {
			least = i
		}
		if t.sums[i].InuseBytes > t.sums[most].InuseBytes {
			most = i
		}
	}
	return least, most
}

// differs reports whether the snapshots have different bytes or different numbers of objects.
func (t *tallied) differs() bool {
	return slices.ContainsFunc(t.sums, func(v snapshot.Values) bool {
		return v.InuseBytes != t.sums[0].InuseBytes || v.InuseObjects != t.sums[0].InuseObjects
	})
}

// tally returns the rows of the snapshots, by class of memory: "" is that of GPUs.
func tally(by By, all ...*snapshot.Snapshot) map[string][]*tallied {
	var together snapshot.Snapshot
	for _, s := range all {
		together.Samples = append(together.Samples, s.Samples...)
	}
	by, samples := by.samples(&together)
	for i := range by { // runs of one program may differ in these
		if c := &by[i]; c.beside && c.ofProcess && c.name != "pid" {
			c.empty, c.of = true, func(*snapshot.Sample) string { return "" }
		}
	}
	rows := map[string]*tallied{}
	out := map[string][]*tallied{}
	for i, s := range all {
		for _, x := range samples[:len(s.Samples)] {
			class := ""
			if !snapshot.OnGPU(x.Kind) {
				class = snapshot.Class(x.Kind)
			}
			values := by.values(x)
			key := fmt.Sprintf("%q %q", class, values)
			row := rows[key]
			if row == nil {
				row = &tallied{values, make([]snapshot.Values, len(all))}
				rows[key] = row
				out[class] = append(out[class], row)
			}
			row.sums[i].Add(&x.Values)
		}
		samples = samples[len(s.Samples):]
	}
	return out
}

// differences returns the rows that differ, the largest difference first, by the first of some measures of
// it in which two rows are unlike.
func differences(rows []*tallied, of ...func(*tallied) int64) []*tallied {
	rows = slices.DeleteFunc(rows, func(t *tallied) bool { return !t.differs() })
	slices.SortFunc(rows, func(a, b *tallied) int {
		for _, of := range of {
			if c := cmp.Or(cmp.Compare(abs(of(b)), abs(of(a))), cmp.Compare(of(b), of(a))); c != 0 {
				return c
			}
		}
		return slices.Compare(a.values, b.values)
	})
	return rows
}

// classesOf returns the classes of a tally, that of GPUs first.
func classesOf(t map[string][]*tallied) []string {
	return slices.SortedFunc(maps.Keys(t), strings.Compare)
}

// sumTallied returns what each of n snapshots has of the rows.
func sumTallied(rows []*tallied, n int) []snapshot.Values {
	sums := make([]snapshot.Values, n)
	for _, t := range rows {
		for i := range sums {
			sums[i].Add(&t.sums[i])
		}
	}
	return sums
}
