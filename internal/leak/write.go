package leak

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
)

// maxShown bounds the stacks that Write shows in full.
const maxShown = 20

// Write writes r for people, width columns wide (0 for render.DefaultWidth).
func Write(w io.Writer, r *Report, width int, color bool) error {
	page := render.NewPage(w, width, color)
	o := r.Options
	switch {
	case r.TooShort():
		page.Heading("Too short to tell what leaks")
		page.Line("%s of %s ended in this trace; %d are needed.", count(r.Intervals, "interval"), duration(o.Interval), o.enough())
		page.Line("Trace for longer, or take shorter intervals.")
	case len(r.Stacks) == 0:
		page.Heading("No stack of %s leaks", r.Target)
		page.Line("None grew through %d of the %d intervals of %s and still holds", o.Intervals, r.Intervals, duration(o.Interval))
		page.Line("allocations from as many of them, one at least %s old.", count(o.Outlive, "interval"))
	default:
		page.Heading("%s of %s leaked in %d intervals of %s", count(len(r.Stacks), "stack"), r.Target, r.Intervals, duration(o.Interval))
		for i := range r.Stacks[:min(len(r.Stacks), maxShown)] {
			stack(page, &r.Stacks[i], o)
		}
		if n := len(r.Stacks) - maxShown; n > 0 {
			page.Heading("%s more, with less growth", count(n, "stack"))
		}
	}
	if !r.TooShort() {
		about(page, r)
	}
	if err := page.Flush(); err != nil {
		return fmt.Errorf("write leaks: %w", err)
	}
	return nil
}

func stack(page *render.Page, s *Stack, o Options) {
	l := &s.Sample.Labels
	of := l.Kind
	if l.GPU != "" {
		of += ", gpu " + l.GPU
	}
	page.Heading("%s: %s, owner %s, %s (pid %d)", bytefmt.Signed(s.Growth), of, cmp.Or(l.Owner, "unknown"), cmp.Or(l.Process, "unknown"), l.PID)
	page.Line("  Grew through %d of the last %s, by %s each (median).",
		s.Rises, count(s.Span, "interval"), bytefmt.Format(s.MedianRise))
	page.Line("  Holds %s in %s (%s),",
		bytefmt.Format(s.Sample.InuseBytes), count(int(s.Sample.InuseObjects), "object"), signed(s.GrowthObjects))
	page.Line("  of which %s in %s outlived %s (%s).",
		bytefmt.Format(s.OldBytes), count(int(s.OldObjects), "object"),
		count(o.Outlive, "interval"), duration(time.Duration(o.Outlive)*o.Interval))
	ages(page, s.Ages)
	page.Line("  STACK")
	for _, f := range frames(s.Sample.Stack) {
		page.Line("      %s", f)
	}
}

// barWidth is the length of the longest bar of a histogram.
const barWidth = 32

func ages(page *render.Page, ages []Age) {
	var most int64
	for _, a := range ages {
		most = max(most, a.Bytes)
	}
	rows := make([]render.Row, len(ages))
	for i, a := range ages {
		name := duration(a.From) + " to " + duration(a.To)
		if a.From == 0 {
			name = "under " + duration(a.To)
		}
		bar := 0
		if a.Bytes > 0 { // whatever is held can be seen
			bar = max(int(float64(a.Bytes)/float64(most)*barWidth+0.5), 1)
		}
		rows[i].Cells = []string{name, bytefmt.Format(a.Bytes), strconv.FormatInt(a.Objects, 10), strings.Repeat("#", bar)}
	}
	page.Table([]string{"AGE", ">BYTES", ">OBJECTS", ""}, rows)
}

// about says what r cannot know.
func about(page *render.Page, r *Report) {
	o := r.Options
	page.Heading("About this search")
	page.Line("  A cache that still fills looks like a leak, until it has been flat for")
	page.Line("  %s. So does a buffer that is emptied less often than every %d.", count(o.Outlive, "interval"), o.Intervals)
	page.Line("  Not found: a leak that pauses for %s (take longer ones),", count(o.Outlive, "interval"))
	page.Line("  and an allocation that is replaced by ever larger ones.")
	if r.GivenBack > 0 {
		page.Warn("  Not shown: %s that grew until the last interval, then gave it back", count(r.GivenBack, "stack"))
	}
	if r.Ageless > 0 {
		page.Warn("  Not shown: %s that grew and whose allocations have no known age", count(r.Ageless, "stack"))
	}
	if r.Unwatched > 0 {
		page.Warn("  Not watched: at least %s, beyond the limit of %d", count(r.Unwatched, "stack"), o.MaxSites)
	}
}

// frames returns the stack for people, leaf first.
func frames(stack []*snapshot.Location) []render.Frame {
	if len(stack) == 0 {
		return []render.Frame{{Function: "[no stack]"}}
	}
	var out []render.Frame
	for _, l := range stack {
		for _, line := range l.Lines {
			out = append(out, render.Frame{Function: line.Function, File: line.File, Line: int64(line.Line)})
		}
	}
	return out
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return strconv.Itoa(n) + " " + what
}

func signed(n int64) string {
	if n > 0 {
		return "+" + strconv.FormatInt(n, 10)
	}
	return strconv.FormatInt(n, 10)
}
