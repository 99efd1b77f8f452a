package export

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
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
// use, the largest change first, the totals of each class, and of what the memory is
// for. Stacks are equal when their functions, files, lines and labels are; addresses
// and labels that are PerRun or Guessed do not count. The later labels are shown.
func Diff(w io.Writer, a, b *snapshot.Snapshot, o Options) error {
	changes := compare(a, b)
	page := render.NewPage(w, o.Width, o.Color)
	diffTotals(page, changes)
	diffCauses(page, changes)
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
				c.sample = x
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
		if l := &snapshot.AllLabels[i]; !l.PerRun && !l.Guessed {
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

// A growth is what became of the stacks that have something in common.
type growth struct {
	before, after, gained, givenBack snapshot.Values
}

// growths returns what became of all stacks that key is equal for.
func growths[K comparable](changes []*change, key func(*snapshot.Sample) K) map[K]*growth {
	out := make(map[K]*growth)
	for _, c := range changes {
		k := key(c.sample)
		if out[k] == nil {
			out[k] = &growth{}
		}
		g := out[k]
		g.before.Add(&c.before)
		g.after.Add(&c.after)
		if d := c.by(); d.InuseBytes > 0 {
			g.gained.Add(&d)
		} else {
			g.givenBack.Add(&d)
		}
	}
	return out
}

// by returns the change of what is in use, in bytes and objects.
func (g *growth) by() (bytes, objects int64) {
	return g.after.InuseBytes - g.before.InuseBytes, g.after.InuseObjects - g.before.InuseObjects
}

var growthHeader = []string{">BEFORE", ">AFTER", ">CHANGE", ">GAINED", ">GIVEN BACK", ">OBJECTS"}

func (g *growth) cells() []string {
	bytes, objects := g.by()
	return []string{
		bytefmt.Format(g.before.InuseBytes), bytefmt.Format(g.after.InuseBytes), bytefmt.Signed(bytes),
		bytefmt.Signed(g.gained.InuseBytes), bytefmt.Signed(g.givenBack.InuseBytes), bytefmt.SignedCount(objects),
	}
}

func diffTotals(page *render.Page, changes []*change) {
	classes := growths(changes, func(s *snapshot.Sample) string { return render.Class(s.Kind) })
	page.Heading("Change of inuse_space")
	var rows []render.Row
	for _, class := range render.Classes() {
		if g := classes[class]; g != nil {
			rows = append(rows, render.Row{Cells: append([]string{class}, g.cells()...)})
		}
	}
	page.Table(append([]string{"CLASS"}, growthHeader...), rows)
}

// diffCauses writes what memory that changed is for, the largest change first.
func diffCauses(page *render.Page, changes []*change) {
	type key struct{ cause, gpu string }
	causes := growths(changes, func(s *snapshot.Sample) key { return key{render.Cause(s), s.GPU} })
	maps.DeleteFunc(causes, func(_ key, g *growth) bool {
		_, objects := g.by()
		return g.gained.InuseBytes == 0 && g.givenBack.InuseBytes == 0 && objects == 0
	})
	if len(causes) == 0 {
		return
	}
	keys := slices.SortedFunc(maps.Keys(causes), func(a, b key) int {
		x, _ := causes[a].by()
		y, _ := causes[b].by()
		return cmp.Or(cmp.Compare(abs(y), abs(x)), strings.Compare(a.cause, b.cause), strings.Compare(a.gpu, b.gpu))
	})
	rows := make([]render.Row, len(keys))
	for i, k := range keys {
		rows[i].Cells = append([]string{k.cause, k.gpu}, causes[k].cells()...)
	}
	page.Heading("By what it is for")
	page.Table(append([]string{"WHAT", "GPU"}, growthHeader...), rows)
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
