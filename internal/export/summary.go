package export

import (
	"io"

	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
)

// Summary writes what is worth knowing at the end of a trace whose stacks are
// written elsewhere: totals, failed calls, and every loss. verbose adds the
// counters that are zero.
func Summary(w io.Writer, s *snapshot.Snapshot, verbose bool) error {
	page := render.NewPage(w, 0, false)
	liveTitle(page, &s.Meta)
	processes(page, s.Processes)
	accounts(page, s.Accounts)
	failures(page, s, Options{Top: 3})
	losses(page, s)
	if verbose {
		page.Heading("Nothing of these")
		for _, c := range s.Loss {
			if c.Value == 0 {
				page.Line("  %s (%s)", c.Help, c.Name)
			}
		}
	}
	return page.Flush("write summary")
}
