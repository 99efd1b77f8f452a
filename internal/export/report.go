package export

import (
	"io"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
)

// Report writes what a saved profile tells: totals, by owner and each other
// label, the stacks that hold most now and at the peak, and what the trace had
// to say, which the notes of s are.
func Report(w io.Writer, s *snapshot.Snapshot, o Options) error {
	page := render.NewPage(w, o.Width, o.Color)
	var facts []string
	if !s.Meta.Start.IsZero() {
		facts = append(facts, s.Meta.Start.UTC().Format(time.RFC3339))
	}
	title(page, &s.Meta, append(facts, s.Meta.Duration.String())...)
	groups(page, s.Samples, nil)
	groups(page, s.Samples, owner)
	for _, l := range shownLabels(s.Several()) {
		if l != owner {
			groups(page, s.Samples, l)
		}
	}
	stacks(page, s, "In use", held, o)
	stacks(page, s, "Held at the peak", atPeak, o)
	if len(s.Notes) > 0 {
		page.Heading("About this trace")
	}
	for _, n := range s.Notes {
		if strings.HasPrefix(n, "loss ") {
			page.Warn("  %s", n)
		} else {
			page.Line("  %s", n)
		}
	}
	return page.Flush("write report")
}
