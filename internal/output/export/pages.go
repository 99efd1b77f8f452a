package export

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// Table writes what a person at a terminal asks first: each process's totals
// by class, the segments of caching allocators, the stacks that hold most, failed calls, and what was lost.
func Table(w io.Writer, s *snapshot.Snapshot, o Options) error {
	page := render.NewPage(w, o.Width, o.Color)
	liveTitle(page, &s.Meta)
	processes(page, s.Processes)
	accounts(page, s.Accounts)
	allocators(page, s.Allocators)
	stackRows(page, s, "In use", held, o)
	failures(page, s, o)
	losses(page, s)
	return page.Flush("write table")
}

func title(page *render.Page, m *snapshot.Meta, facts ...string) {
	page.Heading("GPU memory of %s", cmp.Or(m.Target, "unknown target"))
	page.Line("%s", strings.Join(facts, ", "))
}

func liveTitle(page *render.Page, m *snapshot.Meta) {
	facts := []string{m.Duration.String(), fmt.Sprintf("%d events", m.Events)}
	if m.Driver != "" {
		facts = append(facts, "driver "+m.Driver)
	}
	if m.StackMode != "" {
		facts = append(facts, "stacks: "+m.StackMode)
	}
	title(page, m, facts...)
}

func processes(page *render.Page, processes []snapshot.Process) {
	if len(processes) == 0 {
		return
	}
	var rows []render.Row
	for i := range processes {
		p := &processes[i]
		name := p.Name
		if p.Exited {
			name += " (exited)"
		}
		rows = append(rows, render.Row{Cells: []string{
			name, strconv.Itoa(p.PID), bytefmt.Format(p.Inuse), bytefmt.Format(p.Peak), bytefmt.Format(p.Allocated),
			some(p.Managed), some(p.Host), some(p.Imported), some(p.Graph), some(p.Async), some(p.AsyncHigh),
			some(p.Unattributed), some(p.Unknown), bytefmt.Count(p.LiveObjects),
		}})
	}
	page.Heading("Processes")
	page.Table([]string{"PROCESS", ">PID", ">IN USE", ">PEAK", ">ALLOCATED", ">MANAGED", ">HOST", ">IMPORTED", ">GRAPH", ">ASYNC", ">IN POOLS AT MOST", ">NO STACK KEPT", ">NOT KNOWN", ">LIVE"}, rows)
}

// some is bytefmt.Format, and empty for 0: a column of zeros is left out.
func some(n int64) string {
	if n == 0 {
		return ""
	}
	return bytefmt.Format(n)
}

func accounts(page *render.Page, accounts []snapshot.Account) {
	for i := range accounts {
		a := &accounts[i]
		total, all := "not known", int64(0)
		if a.Known {
			total, all = bytefmt.Format(a.Total), a.Total
		}
		if a.Inferred {
			total += " (the whole GPU's)"
		}
		page.Heading("%s (%d) on GPU %s: %s%s", a.Process, a.PID, a.GPU, total, beside(a))
		var rows []render.Row
		for _, l := range a.Lines {
			row := render.Row{Cells: []string{bytefmt.Format(l.Bytes), bytefmt.Percent(l.Bytes, all), l.Name}}
			if l.Note != "" {
				row.Below = []string{l.Note}
			}
			rows = append(rows, row)
		}
		page.Table([]string{">BYTES", ">OF ALL", "WHAT"}, rows)
	}
}

// beside says how what the driver reported compares with the total.
func beside(a *snapshot.Account) string {
	switch {
	case !a.Compared:
		return ""
	case a.Difference == 0:
		return ", as the driver says"
	case a.Difference > 0:
		return fmt.Sprintf("; the driver says %s more, which was not seen", bytefmt.Format(a.Difference))
	default:
		return fmt.Sprintf("; the driver says %s less", bytefmt.Format(-a.Difference))
	}
}

func failures(page *render.Page, s *snapshot.Snapshot, o Options) {
	var calls, outOfMemory int64
	for i := range s.Processes {
		calls += s.Processes[i].Failed
		outOfMemory += s.Processes[i].OutOfMemory
	}
	largest(page, s, failed, o, func(_, stacks int) {
		if calls > 0 || stacks > 0 {
			page.Heading("Failed allocations: %d calls, %d of them for want of memory", calls, outOfMemory)
		}
	})
}

func losses(page *render.Page, s *snapshot.Snapshot) {
	lost := slices.DeleteFunc(slices.Clone(s.Loss), func(c loss.Counter) bool { return c.Value == 0 })
	if len(lost) > 0 {
		page.Heading("Lost")
	}
	for _, c := range lost {
		page.Warn("  %d %s (%s)", c.Value, c.Help, c.Name)
	}
	if len(s.Notes) > 0 {
		page.Heading("Notes")
	}
	for _, n := range s.Notes {
		page.Line("  %s", n)
	}
}

// Report writes what a saved profile tells: totals, by owner and each other label,
// segments of caching allocators where it has them, and the stacks that hold most now and at the peak; or, with By, a row for each of
// that and the stacks under it; and the notes of s.
func Report(w io.Writer, s *snapshot.Snapshot, o Options) error {
	page := render.NewPage(w, o.Width, o.Color)
	var facts []string
	if !s.Meta.Start.IsZero() {
		facts = append(facts, s.Meta.Start.UTC().Format(time.RFC3339))
	}
	title(page, &s.Meta, append(facts, s.Meta.Duration.String())...)
	if o.Before != nil {
		between(page, o.Before, s)
	}
	if o.By != nil {
		n := o.top(math.MaxInt)
		if o.Top == 0 {
			n = 3
		}
		by, samples := o.By.samples(s)
		by.show(page, samples, s.Accounts, o.face(), n)
	} else {
		overview(page, s, o)
	}
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

// overview writes totals, by each label, and the stacks that hold most.
func overview(page *render.Page, s *snapshot.Snapshot, o Options) {
	groups(page, s.Samples, nil)
	groups(page, s.Samples, owner)
	for _, l := range shownLabels(s.Several()) {
		if l != owner {
			groups(page, s.Samples, l)
		}
	}
	allocators(page, s.Allocators)
	stackRows(page, s, "In use", held, o)
	stackRows(page, s, "Held at the peak", atPeak, o)
}

// Summary writes what is worth knowing at the end of a trace whose stacks are
// written elsewhere: totals, segments, failed calls, and every loss. verbose adds the
// counters that are zero.
func Summary(w io.Writer, s *snapshot.Snapshot, verbose bool) error {
	page := render.NewPage(w, 0, false)
	liveTitle(page, &s.Meta)
	processes(page, s.Processes)
	accounts(page, s.Accounts)
	allocators(page, s.Allocators)
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
