package export

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/table"
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

// A Side is one of the snapshots that are compared, with what readers call it.
type Side struct {
	*snapshot.Snapshot
	Name string // such as "run.gmt at its peak"
}

// Diff writes how the memory in use changed from a to b. With o.By it has the rows of these
// columns. Else it says what the memory is for, which lines of the program have it, and under
// which stacks it is. The largest change comes first. Stacks are equal when their functions,
// files, lines and labels are; addresses and labels that are PerRun or Guessed do not count.
// The snapshots of different runs are aligned first (Align).
func Diff(w io.Writer, a, b Side, o Options) error {
	a.Snapshot, b.Snapshot = a.ByRank(), b.ByRank()
	align(&a, &b)
	page := render.NewPage(w, o.Width, o.Color)
	for _, text := range sidesOf(a, b) {
		page.Line("%s", text)
	}
	names := []string{"category", "line"}
	if o.By != nil {
		names = o.By.names()
	}
	lacking(page, names, pointers(slices.Concat(a.Samples, b.Samples)), &b.Meta)
	if o.By != nil {
		diffBy(page, a.Snapshot, b.Snapshot, o.By, "Memory on GPUs", o)
		return page.Flush("write diff")
	}
	changes := compare(a.Snapshot, b.Snapshot)
	diffBy(page, gpuOnly(a.Snapshot), gpuOnly(b.Snapshot), categoryBy, "What for", o)
	diffBy(page, a.Snapshot, b.Snapshot, lineBy, "Lines of the program", o)
	diffStacks(page, changes, o)
	return page.Flush("write diff")
}

// A TitledTable is a table under a heading.
type TitledTable struct {
	Title string
	*table.Table
}

// Differences returns what Diff says of two snapshots first, and its tables of memory on GPUs, whole.
func Differences(a, b Side) (says []string, tables []TitledTable) {
	align(&a, &b)
	for _, x := range []struct {
		name string
		by   By
	}{{"What for", categoryBy}, {"Lines of the program", lineBy}} {
		if rows := differences(tally(x.by, gpuOnly(a.Snapshot), gpuOnly(b.Snapshot))[""], (*tallied).change); len(rows) > 0 {
			tables = append(tables, TitledTable{x.name, diffTable(rows, x.by)})
		}
	}
	return sidesOf(a, b), tables
}

// sidesOf says how much more or less is held, and what the sides are.
func sidesOf(a, b Side) []string {
	return []string{headline(a, b), fmt.Sprintf("Before: %s: %s", a.Name, momentOf(a.Snapshot)), fmt.Sprintf("After:  %s: %s", b.Name, momentOf(b.Snapshot))}
}

// align aligns the snapshots of different runs.
func align(a, b *Side) {
	if !a.Meta.Start.Equal(b.Meta.Start) {
		aligned := Align(a.Snapshot, b.Snapshot)
		a.Snapshot, b.Snapshot = aligned[0], aligned[1]
	}
}

// What diff shows if it is not told.
var (
	categoryBy, _ = ParseBy("category")
	lineBy, _     = ParseBy("line")
)

// headline says how much more or less is held on GPUs.
func headline(a, b Side) string {
	held := &overview{shown: inUse}
	before, after := held.purpose(onGPU(a.Snapshot)), held.purpose(onGPU(b.Snapshot))
	x, y := before.bytes, after.bytes
	switch tensors := after.tensors - before.tensors; {
	case x == y && tensors != 0:
		return fmt.Sprintf("As much memory on GPUs: %s, with %s in tensors", bytefmt.Format(x), bytefmt.Signed(tensors))
	case x == y:
		return fmt.Sprintf("As much memory on GPUs: %s", bytefmt.Format(x))
	case x < y:
		return fmt.Sprintf("%s more memory on GPUs: %s, and %s before", bytefmt.Format(y-x), bytefmt.Format(y), bytefmt.Format(x))
	}
	return fmt.Sprintf("%s less memory on GPUs: %s, and %s before", bytefmt.Format(x-y), bytefmt.Format(y), bytefmt.Format(x))
}

// gpuOnly returns a snapshot of the memory on GPUs.
func gpuOnly(s *snapshot.Snapshot) *snapshot.Snapshot {
	out := *s
	out.Samples = slices.DeleteFunc(slices.Clone(s.Samples), func(x snapshot.Sample) bool { return !snapshot.OnGPU(x.Kind) })
	return &out
}

// momentOf says how much was held on GPUs, by whom and when.
func momentOf(s *snapshot.Snapshot) string {
	sum := sumOf(onGPU(s))
	return fmt.Sprintf("%s of %s, %v after the trace began", bytefmt.Format(sum.InuseBytes), render.Target(s), s.Meta.Duration.Round(time.Millisecond))
}

// diffBy writes a row for each combination of values that has more or less in b than in a, the
// largest change first, of each of the classes of memory. That of GPUs, "", is called name.
func diffBy(page *render.Page, a, b *snapshot.Snapshot, by By, name string, o Options) {
	all := tally(by, a, b)
	for _, class := range classesOf(all) {
		rows := differences(all[class], (*tallied).change)
		heading := name
		switch {
		case class == "" && len(rows) == 0:
			page.Heading("%s: nothing changed", name)
			continue
		case len(rows) == 0:
			continue
		case class != "":
			heading = class + " memory"
		}
		page.Heading("%s: %s", heading, says(rows))
		shown := rows[:o.top(len(rows))]
		diffTable(shown, by).Text(page)
		if rest := len(rows) - len(shown); rest > 0 {
			page.Line("  and %d more (-n -1)", rest)
		}
	}
}

// diffTable returns the table of some rows of a comparison.
func diffTable(rows []*tallied, by By) *table.Table {
	t := table.New(append([]table.Column{table.SignedBytes("CHANGE"), table.Bytes("BEFORE"), table.Bytes("AFTER"), table.SignedCount("OBJECTS")}, by.columns()...)...)
	for _, x := range rows {
		before, after := &x.sums[0], &x.sums[1]
		t.Add(append([]any{x.change(), before.InuseBytes, after.InuseBytes, after.InuseObjects - before.InuseObjects}, table.Texts(x.values)...)...)
	}
	return t
}

// says says of how many rows what is new, gone, more and less.
func says(rows []*tallied) string {
	var new, gone, more, less, divided int
	for _, r := range rows {
		switch x, y := &r.sums[0], &r.sums[1]; {
		case x.InuseBytes == 0 && x.InuseObjects == 0:
			new++
		case y.InuseBytes == 0 && y.InuseObjects == 0:
			gone++
		case r.change() > 0:
			more++
		case r.change() < 0:
			less++
		default:
			divided++
		}
	}
	var words []string
	for _, w := range []struct {
		n         int
		one, many string
	}{{more, "holds", "hold more"}, {less, "holds", "hold less"}, {new, "is", "are new"}, {gone, "is", "are gone"}, {divided, "holds", "hold as much in other objects"}} {
		switch {
		case w.n == 1:
			_, rest, _ := strings.Cut(w.many, " ")
			words = append(words, "1 "+w.one+" "+rest)
		case w.n > 1:
			words = append(words, fmt.Sprintf("%d %s", w.n, w.many))
		}
	}
	return strings.Join(words, ", ")
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
	return sorted(byKey)
}

// sorted returns changes, the largest first.
func sorted(byKey map[string]*change) []*change {
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

// diffKey is equal for samples that Diff treats as one.
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

// shownAlike adds up the changes whose rows look the same: a row has a few frames of the stack, and
// not every label.
func shownAlike(changes []*change) []*change {
	rows := map[string]*change{}
	for _, c := range changes {
		look := []byte(render.Brief(c.sample.Frames(), briefFrames))
		for _, l := range shownLabels(false) {
			look = fmt.Appendf(look, " %q", l.Get(&c.sample.Labels))
		}
		key := string(look)
		row := rows[key]
		if row == nil {
			row = &change{key: key, sample: c.sample}
			rows[key] = row
		}
		row.before.Add(&c.before)
		row.after.Add(&c.after)
	}
	return sorted(rows)
}

func diffStacks(page *render.Page, changes []*change, o Options) {
	changes = slices.DeleteFunc(shownAlike(changes), func(c *change) bool {
		d := c.by()
		return d.InuseBytes == 0 && d.InuseObjects == 0
	})
	if len(changes) == 0 {
		page.Heading("No stack changed")
		return
	}
	if o.Top == 0 {
		o.Top = 4 // the lines above say most
	}
	shown := changes[:o.top(len(changes))]
	page.Heading("By stack: %d of %d that changed", len(shown), len(changes))
	labels := shownLabels(false)
	t := stackTable(labels, table.SignedBytes("CHANGE"), table.SignedCount("OBJECTS"), table.Bytes("BEFORE"), table.Bytes("AFTER"))
	for _, c := range shown {
		d := c.by()
		addStack(t, labels, c.sample, d.InuseBytes, d.InuseObjects, c.before.InuseBytes, c.after.InuseBytes)
	}
	t.Text(page)
}

func abs(n int64) int64 { return max(n, -n) }
