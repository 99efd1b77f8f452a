package export

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/gpumemtrace/gpumemtrace/internal/loss"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
)

// tellingFrames is how many frames of a stack the table shows.
const tellingFrames = 4

// Table writes what a person at a terminal asks first: each process's totals
// by class, the stacks that hold most, failed calls, and what was lost.
func Table(w io.Writer, s *snapshot.Snapshot, o Options) error {
	page := render.NewPage(w, o.Width, o.Color)
	heading(page, &s.Meta)
	processes(page, s.Processes)
	accounts(page, s.Accounts)
	inUse(page, s.Samples, o.Top)
	failures(page, s, o.Top)
	losses(page, s)
	if err := page.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}

func heading(page *render.Page, m *snapshot.Meta) {
	page.Heading("GPU memory of %s", cmp.Or(m.Target, "nothing"))
	line := fmt.Sprintf("%s, %d events", m.Duration, m.Events)
	if m.Driver != "" {
		line += ", driver " + m.Driver
	}
	if m.StackMode != "" {
		line += ", stacks: " + m.StackMode
	}
	page.Line("%s", line)
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
			some(p.Unattributed), some(p.Unknown), strconv.FormatInt(p.LiveObjects, 10),
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
		total := "not known"
		if a.Known {
			total = bytefmt.Format(a.Total)
		}
		if a.Inferred {
			total += " (the whole GPU's)"
		}
		page.Heading("%s (%d) on GPU %s: the driver says %s", a.Process, a.PID, a.GPU, total)
		var rows []render.Row
		for _, l := range a.Lines {
			mark := ""
			if l.Inferred {
				mark = "inferred"
			}
			rows = append(rows, render.Row{Cells: []string{bytefmt.Format(l.Bytes), bytefmt.Percent(l.Bytes, a.Total), l.Name, mark}, Below: l.Note})
		}
		page.Table([]string{">BYTES", ">OF ALL", "WHAT", "HOW"}, rows)
	}
}

// top returns the samples whose value is not zero, largest first, and how
// many of them to show.
func top(samples []snapshot.Sample, o int, value func(*snapshot.Sample) int64) (found []*snapshot.Sample, shown int) {
	for i := range samples {
		if value(&samples[i]) != 0 {
			found = append(found, &samples[i])
		}
	}
	slices.SortStableFunc(found, func(a, b *snapshot.Sample) int { return cmp.Compare(value(b), value(a)) })
	switch {
	case o == 0:
		o = 10
	case o < 0:
		o = len(found)
	}
	return found, min(o, len(found))
}

func inUse(page *render.Page, samples []snapshot.Sample, o int) {
	live, shown := top(samples, o, func(s *snapshot.Sample) int64 { return s.InuseBytes })
	if len(live) == 0 {
		page.Heading("Nothing is in use")
		return
	}
	byClass := make(map[string]int64)
	for _, s := range live {
		byClass[render.Class(s.Kind)] += s.InuseBytes
	}
	var rows []render.Row
	for _, s := range live[:shown] {
		rows = append(rows, render.Row{
			Cells: []string{
				bytefmt.Format(s.InuseBytes), bytefmt.Percent(s.InuseBytes, byClass[render.Class(s.Kind)]),
				strconv.FormatInt(s.InuseObjects, 10), s.Kind, s.GPU, s.Owner, s.Process,
			},
			Below: render.Telling(frames(s.Stack), tellingFrames),
		})
	}
	page.Heading("In use: %d of %d stacks", shown, len(live))
	page.Table([]string{">IN USE", ">OF CLASS", ">LIVE", "KIND", "GPU", "OWNER", "PROCESS"}, rows)
}

func failures(page *render.Page, s *snapshot.Snapshot, o int) {
	var calls, outOfMemory int64
	for i := range s.Processes {
		calls += s.Processes[i].Failed
		outOfMemory += s.Processes[i].OutOfMemory
	}
	failed, shown := top(s.Samples, o, func(s *snapshot.Sample) int64 { return s.FailedObjects })
	if calls == 0 && len(failed) == 0 {
		return
	}
	page.Heading("Failed allocations: %d calls, %d of them for want of memory", calls, outOfMemory)
	var rows []render.Row
	for _, s := range failed[:shown] {
		rows = append(rows, render.Row{
			Cells: []string{strconv.FormatInt(s.FailedObjects, 10), bytefmt.Format(s.FailedBytes), s.Kind, s.GPU, s.Owner, s.Process},
			Below: render.Telling(frames(s.Stack), tellingFrames),
		})
	}
	if len(rows) > 0 {
		page.Table([]string{">CALLS", ">ASKED FOR", "KIND", "GPU", "OWNER", "PROCESS"}, rows)
	}
}

func losses(page *render.Page, s *snapshot.Snapshot) {
	var lost []loss.Counter
	for _, c := range s.Loss {
		if c.Value != 0 {
			lost = append(lost, c)
		}
	}
	if len(lost) > 0 {
		page.Heading("Lost")
		for _, c := range lost {
			page.Warn("  %d %s (%s)", c.Value, c.Help, c.Name)
		}
	}
	if len(s.Notes) > 0 {
		page.Heading("Notes")
		for _, n := range s.Notes {
			page.Line("  %s", n)
		}
	}
}
