package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/pprof/profile"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// Options are how text is laid out.
type Options struct {
	// SampleType is what Diff compares: inuse_space (also ""), alloc_space or
	// peak_space.
	SampleType string
	Top        int // stacks shown, 0 for 10, negative for all
	Width      int // columns, 0 for render.DefaultWidth
	Color      bool
}

func (o Options) top(n int) int {
	switch {
	case o.Top < 0:
		return n
	case o.Top == 0:
		return min(n, 10)
	}
	return min(n, o.Top)
}

// tellingFrames is how many frames of a stack are shown.
const tellingFrames = 4

// Report writes p for people: totals, by owner, kind, GPU and process, the
// stacks that hold most now and at the peak, and what the trace had to say.
// Bytes of different classes (device, managed, host, ...) are never added up.
func Report(w io.Writer, p *profile.Profile, o Options) error {
	c, err := columnsOf(p)
	if err != nil {
		return err
	}
	page := render.NewPage(w, o.Width, o.Color)
	title(page, p)
	groups(page, p, c, "Totals", "class", func(*profile.Sample) string { return "" })
	for _, by := range []struct{ title, label string }{
		{"By owner", "owner"}, {"By kind", "kind"}, {"By GPU", "gpu"}, {"By process", "process"}, {"By pid", "pid"},
	} {
		groups(page, p, c, by.title, by.label, func(s *profile.Sample) string { return label(s, by.label) })
	}
	stacks(page, p, c.inuse, c.inuseObjects, "In use", o)
	stacks(page, p, c.peak, -1, "Held at the peak", o)
	about(page, p)
	if err := page.Flush(); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func title(page *render.Page, p *profile.Profile) {
	target := "unknown target"
	for _, c := range p.Comments {
		if t, ok := strings.CutPrefix(c, "target: "); ok {
			target = t
			break
		}
	}
	page.Heading("GPU memory of %s", target)
	line := time.Duration(p.DurationNanos).String()
	if p.TimeNanos != 0 {
		line = time.Unix(0, p.TimeNanos).UTC().Format(time.RFC3339) + ", " + line
	}
	page.Line("%s", line)
}

// groups writes one row for each value and class, and nothing when no sample
// has a value.
func groups(page *render.Page, p *profile.Profile, c columns, title, column string, value func(*profile.Sample) string) {
	type key struct{ value, class string }
	sums := make(map[key][]int64)
	total := make(map[string]int64)
	known := column == "class"
	for _, s := range p.Sample {
		k := key{value(s), render.Class(label(s, "kind"))}
		known = known || k.value != ""
		if sums[k] == nil {
			sums[k] = make([]int64, len(p.SampleType))
		}
		for i, v := range s.Value {
			sums[k][i] += v
		}
		total[k.class] += s.Value[c.inuse]
	}
	if !known || len(sums) == 0 {
		return
	}
	keys := make([]key, 0, len(sums))
	for k := range sums {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b key) int {
		return cmp.Or(
			cmp.Compare(sums[b][c.inuse], sums[a][c.inuse]),
			cmp.Compare(sums[b][c.alloc], sums[a][c.alloc]),
			strings.Compare(a.value, b.value),
			strings.Compare(a.class, b.class),
		)
	})
	var rows []render.Row
	for _, k := range keys {
		v := sums[k]
		cells := []string{
			k.class, bytefmt.Format(v[c.inuse]), bytefmt.Percent(v[c.inuse], total[k.class]), number(v[c.inuseObjects]),
			bytefmt.Format(v[c.peak]), bytefmt.Format(v[c.alloc]), number(v[c.allocObjects]),
		}
		if column != "class" {
			cells = append([]string{cmp.Or(k.value, "-")}, cells...)
		}
		rows = append(rows, render.Row{Cells: cells})
	}
	header := []string{"CLASS", ">IN USE", ">OF CLASS", ">LIVE", ">AT PEAK", ">ALLOCATED", ">CALLS"}
	if column != "class" {
		header = append([]string{strings.ToUpper(column)}, header...)
	}
	page.Heading("%s", title)
	page.Table(header, rows)
}

// stacks writes the samples that have most of a column; objects is the column
// of their number, -1 for none.
func stacks(page *render.Page, p *profile.Profile, column, objects int, title string, o Options) {
	var found []*profile.Sample
	total := make(map[string]int64)
	for _, s := range p.Sample {
		if s.Value[column] != 0 {
			found = append(found, s)
			total[render.Class(label(s, "kind"))] += s.Value[column]
		}
	}
	if len(found) == 0 {
		page.Heading("%s: nothing", title)
		return
	}
	slices.SortStableFunc(found, func(a, b *profile.Sample) int { return cmp.Compare(b.Value[column], a.Value[column]) })
	var rows []render.Row
	shown := o.top(len(found))
	for _, s := range found[:shown] {
		live := ""
		if objects >= 0 {
			live = number(s.Value[objects])
		}
		rows = append(rows, render.Row{
			Cells: []string{
				bytefmt.Format(s.Value[column]), bytefmt.Percent(s.Value[column], total[render.Class(label(s, "kind"))]), live,
				label(s, "kind"), label(s, "gpu"), label(s, "owner"), label(s, "process"), label(s, "pid"),
			},
			Below: render.Telling(frames(s), tellingFrames),
		})
	}
	page.Heading("%s: %d of %d stacks", title, shown, len(found))
	page.Table([]string{">BYTES", ">OF CLASS", ">LIVE", "KIND", "GPU", "OWNER", "PROCESS", "PID"}, rows)
}

func about(page *render.Page, p *profile.Profile) {
	if len(p.Comments) == 0 {
		return
	}
	page.Heading("About this trace")
	for _, c := range p.Comments {
		if strings.HasPrefix(c, "loss ") {
			page.Warn("  %s", c)
		} else {
			page.Line("  %s", c)
		}
	}
}

// frames returns a sample's stack, leaf first.
func frames(s *profile.Sample) []render.Frame {
	var out []render.Frame
	for _, l := range s.Location {
		if len(l.Line) == 0 {
			out = append(out, render.Frame{Function: fmt.Sprintf("0x%x", l.Address)})
		}
		for _, line := range l.Line {
			out = append(out, render.Frame{Function: line.Function.Name, File: line.Function.Filename, Line: line.Line})
		}
	}
	return out
}

func number(n int64) string { return strconv.FormatInt(n, 10) }
