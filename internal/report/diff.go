package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/google/pprof/profile"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// A change is one stack with one set of labels in two profiles.
type change struct {
	key           string
	sample        *profile.Sample // one of those with this key
	before, after amount
}

type amount struct{ bytes, objects int64 }

func (c *change) bytes() int64   { return c.after.bytes - c.before.bytes }
func (c *change) objects() int64 { return c.after.objects - c.before.objects }

// Diff writes what each stack gained and gave back from a to b, the largest
// change first, and each class's totals. Stacks are equal when their
// functions, files, lines and labels are; addresses and pids differ from run
// to run and do not count.
func Diff(w io.Writer, a, b *profile.Profile, o Options) error {
	changes, objects, err := compare(a, b, o.SampleType)
	if err != nil {
		return err
	}
	page := render.NewPage(w, o.Width, o.Color)
	diffTotals(page, changes, objects, cmp.Or(o.SampleType, "inuse_space"))
	diffStacks(page, changes, objects, o)
	if err := page.Flush(); err != nil {
		return fmt.Errorf("write diff: %w", err)
	}
	return nil
}

// compare returns every stack of a and b, the largest change first, and
// whether sampleType has a number of objects.
func compare(a, b *profile.Profile, sampleType string) (changes []*change, objects bool, err error) {
	byKey := make(map[string]*change)
	for i, p := range []*profile.Profile{a, b} {
		c, err := columnsOf(p)
		if err != nil {
			return nil, false, err
		}
		bytes, count := c.inuse, c.inuseObjects
		switch sampleType {
		case "", "inuse_space":
		case "alloc_space":
			bytes, count = c.alloc, c.allocObjects
		case "peak_space":
			bytes, count = c.peak, -1
		default:
			return nil, false, fmt.Errorf("unknown sample type %q: use inuse_space, alloc_space or peak_space", sampleType)
		}
		objects = count >= 0
		for _, s := range p.Sample {
			k := diffKey(s)
			ch := byKey[k]
			if ch == nil {
				ch = &change{key: k, sample: s}
				byKey[k] = ch
				changes = append(changes, ch)
			}
			side := &ch.before
			if i == 1 {
				side = &ch.after
			}
			side.bytes += s.Value[bytes]
			if objects {
				side.objects += s.Value[count]
			}
		}
	}
	slices.SortFunc(changes, func(x, y *change) int {
		return cmp.Or(
			cmp.Compare(abs(y.bytes()), abs(x.bytes())),
			cmp.Compare(y.bytes(), x.bytes()),
			cmp.Compare(abs(y.objects()), abs(x.objects())),
			strings.Compare(x.key, y.key),
		)
	})
	return changes, objects, nil
}

// diffKey is equal for samples that Diff takes for one.
func diffKey(s *profile.Sample) string {
	var b strings.Builder
	for _, l := range []string{"kind", "api", "runtime", "gpu", "owner", "process"} {
		fmt.Fprintf(&b, "%q ", label(s, l))
	}
	for _, f := range frames(s) {
		fmt.Fprintf(&b, "%q %q %d ", f.Function, f.File, f.Line)
	}
	return b.String()
}

func diffTotals(page *render.Page, changes []*change, objects bool, sampleType string) {
	type total struct{ before, after, gained, givenBack, objects int64 }
	byClass := make(map[string]*total)
	for _, c := range changes {
		class := render.Class(label(c.sample, "kind"))
		t := byClass[class]
		if t == nil {
			t = new(total)
			byClass[class] = t
		}
		t.before += c.before.bytes
		t.after += c.after.bytes
		t.objects += c.objects()
		if d := c.bytes(); d > 0 {
			t.gained += d
		} else {
			t.givenBack += d
		}
	}
	page.Heading("Change of %s", sampleType)
	var rows []render.Row
	for _, class := range []string{"device", "managed", "host", "imported", "graph"} {
		if t := byClass[class]; t != nil {
			count := ""
			if objects {
				count = signed(t.objects)
			}
			rows = append(rows, render.Row{Cells: []string{
				class, bytefmt.Format(t.before), bytefmt.Format(t.after), bytefmt.Signed(t.after - t.before),
				bytefmt.Signed(t.gained), bytefmt.Signed(t.givenBack), count,
			}})
		}
	}
	page.Table([]string{"CLASS", ">BEFORE", ">AFTER", ">CHANGE", ">GAINED", ">GIVEN BACK", ">OBJECTS"}, rows)
}

func diffStacks(page *render.Page, changes []*change, objects bool, o Options) {
	changes = slices.DeleteFunc(changes, func(c *change) bool { return c.bytes() == 0 && c.objects() == 0 })
	if len(changes) == 0 {
		page.Heading("No stack changed")
		return
	}
	shown := o.top(len(changes))
	var rows []render.Row
	for _, c := range changes[:shown] {
		count := ""
		if objects {
			count = signed(c.objects())
		}
		rows = append(rows, render.Row{
			Cells: []string{
				bytefmt.Signed(c.bytes()), count, bytefmt.Format(c.before.bytes), bytefmt.Format(c.after.bytes),
				label(c.sample, "kind"), label(c.sample, "gpu"), label(c.sample, "owner"), label(c.sample, "process"),
			},
			Below: render.Telling(frames(c.sample), tellingFrames),
		})
	}
	page.Heading("By stack: %d of %d that changed", shown, len(changes))
	page.Table([]string{">CHANGE", ">OBJECTS", ">BEFORE", ">AFTER", "KIND", "GPU", "OWNER", "PROCESS"}, rows)
}

func signed(n int64) string {
	if n > 0 {
		return "+" + number(n)
	}
	return number(n)
}

func abs(n int64) int64 {
	if n < 0 {
		return -n
	}
	return n
}
