package export

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/model/leak"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
	"github.com/gpumemtrace/gpumemtrace/internal/output/findings"
	"github.com/gpumemtrace/gpumemtrace/internal/output/table"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// maxLeaks bounds the stacks that Leaks shows in full.
const maxLeaks = 20

// Leaks writes which stacks leak.
func Leaks(w io.Writer, r *leak.Report, layout Options) error {
	page := render.NewPage(w, layout.Width, layout.Color)
	leakRows(page, r, "")
	return page.Flush("write leaks")
}

// LeaksOfRecording writes which stacks of a recording leak, and what findings say of that. s is the
// moment of r, end that of the recording, and looked says which part of it r is of.
func LeaksOfRecording(w io.Writer, r *leak.Report, s, end *snapshot.Snapshot, looked string, layout Options) error {
	page := render.NewPage(w, layout.Width, layout.Color)
	if v := findings.Find(s, end).Accumulated(); len(v.Findings) > 0 {
		v.Show(page, false)
	}
	leakRows(page, r, looked)
	return page.Flush("write leaks")
}

func leakRows(page *render.Page, r *leak.Report, looked string) {
	o := r.Options
	interval := bytefmt.Duration(o.Interval)
	if o.Steps > 0 {
		interval = "about " + bytefmt.Counted(o.Steps, "training step") + " (" + interval + ")"
	}
	switch {
	case r.TooShort():
		page.Heading("Too short to tell what leaks")
		page.Line("%s of %s ended in this trace; %d are needed.", bytefmt.Counted(r.Intervals, "interval"), interval, o.Enough())
		page.Line("Trace for longer, or take shorter intervals.")
	case len(r.Stacks) == 0:
		page.Heading("No stack of %s is seen to leak", r.Target)
		page.Line("A stack leaks if its memory grew in %d of the %d intervals of %s, and it", o.Intervals, r.Intervals, interval)
		page.Line("still holds memory from each of these. The oldest must have lasted for")
		page.Line("%s. No stack did so.", bytefmt.Counted(o.Outlive, "interval"))
		if r.Segments {
			page.Line("This trace has no tensors. If PyTorch's cache has room, a leak of tensors")
			page.Line("does not show. Trace with --tensors.")
		}
	default:
		page.Heading("%s of %s leaked in %d intervals of %s", bytefmt.Counted(len(r.Stacks), "stack"), r.Target, r.Intervals, interval)
		for i := range r.Stacks[:min(len(r.Stacks), maxLeaks)] {
			leaking(page, &r.Stacks[i], o)
		}
		if n := len(r.Stacks) - maxLeaks; n > 0 {
			page.Heading("%s more, with less growth", bytefmt.Counted(n, "stack"))
		}
	}
	if !r.TooShort() {
		aboutSearch(page, r, looked)
	}
}

func leaking(page *render.Page, s *leak.Stack, o leak.Options) {
	x := &s.Sample
	at := cmp.Or(innermost(ownLines([]*snapshot.Sample{x}))(x), absent("line", x))
	page.Heading("%s at %s, %s (%d)", bytefmt.Signed(s.Growth), at, x.Process, x.PID)
	keeps(page, &s.Holder)
	if s.Freed {
		page.Line("  Most of it was freed before the end of the recording.")
	}
	by := bytefmt.Format(s.MedianRise) + " each (median)"
	if o.Steps > 0 { // some intervals have more steps than others
		by = bytefmt.Format(s.Growth) + " in all"
	}
	page.Line("  Grew through %d of the last %s, by %s. Holds %s in %s (%s), of which %s in %s outlived %s (%s).",
		s.Rises, bytefmt.Counted(s.Span, "interval"), by, bytefmt.Format(x.InuseBytes), bytefmt.Counted(x.InuseObjects, "object"), bytefmt.SignedCount(s.GrowthObjects),
		bytefmt.Format(s.OldBytes), bytefmt.Counted(s.OldObjects, "object"), bytefmt.Counted(o.Outlive, "interval"), bytefmt.Duration(time.Duration(o.Outlive)*o.Interval))
	page.Line("  %s", labelText(&x.Labels))
	title, frames := withoutNative("  STACK", x.Frames())
	page.Line("%s", title)
	for _, l := range frames {
		for i := range l.Lines {
			page.Line("      %s", render.Name(&l.Lines[i]))
		}
	}
	ages(page, s.Ages)
}

// withoutNative returns a stack without the native frames around those of Python, and its title, which
// says how many these are.
func withoutNative(title string, frames []*snapshot.Location) (string, []*snapshot.Location) {
	if shown := stacks.Fold(stacks.NativeNone, frames); stacks.Python(frames) && len(shown) < len(frames) {
		return fmt.Sprintf("%s, without %s", title, bytefmt.Counted(len(frames)-len(shown), "native frame")), shown
	}
	return title, frames
}

// keeps says who holds what leaked, if that is known.
func keeps(page *render.Page, h *leak.Holder) {
	if h.Name == "" {
		return
	}
	what := ""
	switch {
	case h.Class != "" && h.Items > 0:
		what = " (" + h.Class + " of " + bytefmt.Counted(h.Items, "item") + ")"
	case h.Class != "":
		what = " (" + h.Class + ")"
	}
	graph := ""
	switch {
	case h.Graph > 0 && h.Items > 1:
		graph = "; with it go " + bytefmt.Format(h.Graph/int64(h.Items)) + " of autograd graph for each item"
	case h.Graph > 0:
		graph = "; with it go " + bytefmt.Format(h.Graph) + " of autograd graphs"
	}
	page.Line("  Held by `%s`%s: %s in %s since the growth began%s.", h.Name, what, bytefmt.Format(h.Bytes), bytefmt.Counted(h.Objects, "object"), graph)
}

// labelText returns the labels as a clause, but for the process. A kind needs no name before it.
func labelText(labels *snapshot.Labels) string {
	var out []string
	for i := range snapshot.AllLabels {
		l := &snapshot.AllLabels[i]
		text := l.Get(labels)
		switch {
		case l.Title == "" || l.PerRun || l.Name == "process":
		case l.Name == "kind":
			out = append(out, cmp.Or(text, "unknown"))
		case l.Name == "owner" || text != "":
			out = append(out, l.Name+" "+cmp.Or(text, "unknown"))
		}
	}
	return strings.Join(out, ", ")
}

// barWidth is the length of the longest bar of a histogram.
const barWidth = 32

func ages(page *render.Page, ages []leak.Age) {
	var most int64
	for _, a := range ages {
		most = max(most, a.Bytes)
	}
	t := table.New(table.Text("AGE"), table.Bytes("BYTES"), table.Count("OBJECTS"), table.Text(""))
	for _, a := range ages {
		name := bytefmt.Duration(a.From) + " to " + bytefmt.Duration(a.To)
		if a.From == 0 {
			name = "under " + bytefmt.Duration(a.To)
		}
		bar := 0
		if a.Bytes > 0 { // whatever is held can be seen
			bar = max(int(float64(a.Bytes)/float64(most)*barWidth+0.5), 1)
		}
		t.Add(name, a.Bytes, a.Objects, strings.Repeat("#", bar))
	}
	t.Text(page)
}

// aboutSearch writes what r cannot know.
func aboutSearch(page *render.Page, r *leak.Report, looked string) {
	o := r.Options
	page.Heading("About this search")
	if looked != "" {
		page.Line("  Looked at: %s.", looked)
	}
	page.Line("  A cache that still grows is listed too. Once it has not grown for %s, it is not.", bytefmt.Counted(o.Outlive, "interval"))
	page.Line("  So is a buffer that is emptied less often than once in %s.", bytefmt.Counted(o.Intervals, "interval"))
	page.Line("  Not found: a leak that pauses for %s (take longer ones),", bytefmt.Counted(o.Outlive, "interval"))
	page.Line("  an allocation that is replaced by ever larger ones, and what a program frees as it ends")
	page.Line("  (of a recording, report --leaks looks at the time before that).")
	if r.GivenBack > 0 {
		page.Warn("  Not shown: %s that grew until the last interval, then gave it back", bytefmt.Counted(r.GivenBack, "stack"))
	}
	if r.Ageless > 0 {
		page.Warn("  Not shown: %s that grew and whose allocations have no known age", bytefmt.Counted(r.Ageless, "stack"))
	}
	if r.Unwatched > 0 {
		page.Warn("  Not watched: at least %s, beyond the limit of %d", bytefmt.Counted(r.Unwatched, "stack"), o.MaxSites)
	}
}
