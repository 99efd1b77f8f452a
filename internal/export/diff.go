package export

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
)

// A change is one stack with one set of labels in two snapshots.
type change struct {
	key           string
	sample        *snapshot.Sample // one of those with this key
	before, after snapshot.Values
}

func (c *change) by() snapshot.Values {
	d := c.after
	d.Sub(&c.before)
	return d
}

// Diff writes what each stack gained and gave back from a to b of what is in
// use, the largest change first, and each class's totals. Stacks are equal
// when their functions, files, lines and labels are; addresses and labels that
// are PerRun do not count.
func Diff(w io.Writer, a, b *snapshot.Snapshot, o Options) error {
	changes := compare(a, b)
	page := render.NewPage(w, o.Width, o.Color)
	diffTotals(page, changes)
	diffStacks(page, changes, o)
	return page.Flush("write diff")
}

// compare returns every stack of a and b, the largest change first.
func compare(a, b *snapshot.Snapshot) []*change {
	byKey := make(map[string]*change)
	for i, s := range []*snapshot.Snapshot{a, b} {
		for j := range s.Samples {
			x := &s.Samples[j]
			k := diffKey(x)
			c := byKey[k]
			if c == nil {
				c = &change{key: k, sample: x}
				byKey[k] = c
			}
			if i == 0 {
				c.before.Add(&x.Values)
			} else {
				c.after.Add(&x.Values)
			}
		}
	}
	changes := slices.Collect(maps.Values(byKey))
	slices.SortFunc(changes, func(x, y *change) int {
		dx, dy := x.by(), y.by()
		return cmp.Or(
			cmp.Compare(abs(dy.InuseBytes), abs(dx.InuseBytes)),
			cmp.Compare(dy.InuseBytes, dx.InuseBytes),
			cmp.Compare(abs(dy.InuseObjects), abs(dx.InuseObjects)),
			strings.Compare(x.key, y.key),
		)
	})
	return changes
}

// diffKey is equal for samples that Diff takes for one.
func diffKey(s *snapshot.Sample) string {
	var key []byte
	for i := range snapshot.AllLabels {
		if l := &snapshot.AllLabels[i]; !l.PerRun {
			key = fmt.Appendf(key, "%q ", l.Get(&s.Labels))
		}
	}
	for _, l := range s.Frames() {
		for _, f := range l.Lines {
			key = fmt.Appendf(key, "%q %q %d ", f.Function, f.File, f.Line)
		}
	}
	return string(key)
}

func diffTotals(page *render.Page, changes []*change) {
	type sums map[string]*snapshot.Values // by class
	before, after, gained, givenBack := sums{}, sums{}, sums{}, sums{}
	for _, c := range changes {
		class := render.Class(c.sample.Kind)
		sum(before, class).Add(&c.before)
		sum(after, class).Add(&c.after)
		if d := c.by(); d.InuseBytes > 0 {
			sum(gained, class).Add(&d)
		} else {
			sum(givenBack, class).Add(&d)
		}
	}
	page.Heading("Change of inuse_space")
	var rows []render.Row
	for _, class := range []string{"device", "managed", "host", "imported", "graph"} {
		if before[class] == nil {
			continue
		}
		c := change{before: *before[class], after: *after[class]}
		d := c.by()
		rows = append(rows, render.Row{Cells: []string{
			class, bytefmt.Format(c.before.InuseBytes), bytefmt.Format(c.after.InuseBytes), bytefmt.Signed(d.InuseBytes),
			bytefmt.Signed(sum(gained, class).InuseBytes), bytefmt.Signed(sum(givenBack, class).InuseBytes), bytefmt.SignedCount(d.InuseObjects),
		}})
	}
	page.Table([]string{"CLASS", ">BEFORE", ">AFTER", ">CHANGE", ">GAINED", ">GIVEN BACK", ">OBJECTS"}, rows)
}

func diffStacks(page *render.Page, changes []*change, o Options) {
	changes = slices.DeleteFunc(changes, func(c *change) bool {
		d := c.by()
		return d.InuseBytes == 0 && d.InuseObjects == 0
	})
	if len(changes) == 0 {
		page.Heading("No stack changed")
		return
	}
	shown := changes[:o.top(len(changes))]
	page.Heading("By stack: %d of %d that changed", len(shown), len(changes))
	stackTable(page, false, []string{">CHANGE", ">OBJECTS", ">BEFORE", ">AFTER"}, shown, func(c *change) (*snapshot.Sample, []string) {
		d := c.by()
		return c.sample, []string{
			bytefmt.Signed(d.InuseBytes), bytefmt.SignedCount(d.InuseObjects),
			bytefmt.Format(c.before.InuseBytes), bytefmt.Format(c.after.InuseBytes),
		}
	})
}

func abs(n int64) int64 { return max(n, -n) }
