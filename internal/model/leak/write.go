package leak

import (
	"cmp"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
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
		page.Line("%s of %s ended in this trace; %d are needed.", count(r.Intervals, "interval"), bytefmt.Duration(o.Interval), o.enough())
		page.Line("Trace for longer, or take shorter intervals.")
	case len(r.Stacks) == 0:
		page.Heading("No stack of %s leaks", r.Target)
		page.Line("A stack leaks if its memory grew in %d of the %d intervals of %s, and it", o.Intervals, r.Intervals, bytefmt.Duration(o.Interval))
		page.Line("still holds memory from each of these. The oldest must have lasted for")
		page.Line("%s. No stack did so.", count(o.Outlive, "interval"))
		if r.Segments {
			page.Line("This trace has no tensors. If PyTorch's cache has room, a leak of tensors")
			page.Line("does not show. Trace with --tensors.")
		}
	default:
		page.Heading("%s of %s leaked in %d intervals of %s", count(len(r.Stacks), "stack"), r.Target, r.Intervals, bytefmt.Duration(o.Interval))
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
	return page.Flush("write leaks")
}

func stack(page *render.Page, s *Stack, o Options) {
	page.Heading("%s: %s (pid %d)", bytefmt.Signed(s.Growth), labelText(&s.Sample.Labels), s.Sample.PID)
	page.Line("  Grew through %d of the last %s, by %s each (median).",
		s.Rises, count(s.Span, "interval"), bytefmt.Format(s.MedianRise))
	page.Line("  Holds %s in %s (%s),",
		bytefmt.Format(s.Sample.InuseBytes), count(int(s.Sample.InuseObjects), "object"), bytefmt.SignedCount(s.GrowthObjects))
	page.Line("  of which %s in %s outlived %s (%s).",
		bytefmt.Format(s.OldBytes), count(int(s.OldObjects), "object"),
		count(o.Outlive, "interval"), bytefmt.Duration(time.Duration(o.Outlive)*o.Interval))
	s.Holder.write(page)
	ages(page, s.Ages)
	page.Line("  STACK")
	for _, l := range s.Sample.Frames() {
		for i := range l.Lines {
			page.Line("      %s", render.Name(&l.Lines[i]))
		}
	}
}

// labelText returns the labels as a clause. A kind and a process need no name before them.
func labelText(labels *snapshot.Labels) string {
	var out []string
	for i := range snapshot.AllLabels {
		l := &snapshot.AllLabels[i]
		text := l.Get(labels)
		switch {
		case l.Title == "" || l.PerRun:
		case l.Name == "kind" || l.Name == "process":
			out = append(out, cmp.Or(text, "unknown"))
		case l.Name == "owner" || text != "":
			out = append(out, l.Name+" "+cmp.Or(text, "unknown"))
		}
	}
	return strings.Join(out, ", ")
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
		name := bytefmt.Duration(a.From) + " to " + bytefmt.Duration(a.To)
		if a.From == 0 {
			name = "under " + bytefmt.Duration(a.To)
		}
		bar := 0
		if a.Bytes > 0 { // whatever is held can be seen
			bar = max(int(float64(a.Bytes)/float64(most)*barWidth+0.5), 1)
		}
		rows[i].Cells = []string{name, bytefmt.Format(a.Bytes), bytefmt.Count(a.Objects), strings.Repeat("#", bar)}
	}
	page.Table([]string{"AGE", ">BYTES", ">OBJECTS", ""}, rows)
}

// about writes what r cannot know.
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

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return strconv.Itoa(n) + " " + what
}
