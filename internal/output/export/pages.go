package export

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/findings"
	"github.com/gpumemtrace/gpumemtrace/internal/output/table"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// Table writes a page for a person at a terminal: each process's totals by class, the
// segments of caching allocators, the stacks that hold most, failed calls, and losses.
func Table(w io.Writer, s *snapshot.Snapshot, o Options) error {
	s = s.ByRank()
	page := traced(w, s, o)
	held := "In use"
	if s.Meta.Peaks {
		held = "At the peak"
	}
	stackRows(page, s, held, o)
	windowsByLine(page, s, o)
	failures(page, s, o)
	page.Losses(s.Loss, s.Notes)
	return page.Flush("write table")
}

// traced begins a page of what was traced: what is wrong, and totals.
func traced(w io.Writer, s *snapshot.Snapshot, o Options) *render.Page {
	page, when := render.NewPage(w, o.Width, o.Color), whenOf(&s.Meta)
	liveTitle(page, s)
	if v := findings.Find(s, s); len(v.Findings) > 0 {
		v.Show(page, false)
	}
	processes(page, s.Processes, when)
	accounts(page, s.Accounts, when)
	allocators(page, s.Allocators, when)
	return page
}

// liveTitle begins a page of what was traced, or of a moment of a recording.
func liveTitle(page *render.Page, s *snapshot.Snapshot) {
	m := &s.Meta
	page.Heading("GPU memory of %s", render.Target(s))
	page.Line("%s", moment(s))
	facts := []string{fmt.Sprintf("%d events", m.Events)}
	if m.Driver != "" {
		facts = append(facts, "driver "+m.Driver)
	}
	if m.StackMode != "" {
		facts = append(facts, "stacks: "+m.StackMode)
	}
	page.Line("%s", strings.Join(facts, ", "))
}

// moment says in sentences which moment s shows, and what GPUs hold then.
func moment(s *snapshot.Snapshot) string {
	m, sum := &s.Meta, sumOf(onGPU(s))
	now, peak, after := bytefmt.Format(sum.InuseBytes), bytefmt.Format(sum.PeakBytes), rounded(m.Duration)
	switch {
	case sum == (snapshot.Values{}):
		return fmt.Sprintf("Nothing yet: %v after the trace began, no memory on a GPU was seen.", after)
	case m.Moment != "":
		return strings.ToUpper(m.Moment[:1]) + m.Moment[1:] + ": " + now + " on GPUs."
	case m.Peaks:
		return fmt.Sprintf("At the peak of each process: %s on GPUs. Just before they ended, %v after the trace began: %s.", peak, after, now)
	}
	return fmt.Sprintf("In use %v after the trace began: %s on GPUs. At the peak of each process: %s.", after, now, peak)
}

// processes writes what the program itself allocated, which is a part of what the account of a process has.
func processes(page *render.Page, processes []snapshot.Process, when string) {
	if len(processes) == 0 {
		return
	}
	t := table.New(table.Text("PROCESS"), table.TextRight("PID"), table.Bytes("IN USE"), table.Bytes("PEAK"), table.Bytes("ALLOCATED"), table.SomeBytes("MANAGED"), table.SomeBytes("HOST"),
		table.SomeBytes("IMPORTED"), table.SomeBytes("GRAPH"), table.SomeBytes("ASYNC"), table.SomeBytes("IN POOLS AT MOST"), table.SomeBytes("NO STACK KEPT"), table.SomeBytes("NOT KNOWN"), table.Count("LIVE"))
	for i := range processes {
		p := &processes[i]
		name := p.Name
		if p.Exited {
			name += " (exited)"
		}
		t.Add(name, p.PID, p.Inuse, p.Peak, p.Allocated, p.Managed, p.Host, p.Imported, p.Graph, p.Async, p.AsyncHigh, p.Unattributed, p.Unknown, p.LiveObjects)
	}
	page.Heading("Allocated by each process, without contexts and such: in use%s, and at its own peak", when)
	t.Text(page)
}

// whenOf says of which moment figures are that are not known of peaks: "" if it is the one that the page begins with.
func whenOf(m *snapshot.Meta) string {
	name, _, _ := strings.Cut(m.Moment, ",")
	after, alone := strings.CutSuffix(name, " after the trace began")
	switch {
	case alone:
		return " after " + after
	case name != "":
		return " " + name
	case m.Peaks:
		return " at the end"
	}
	return ""
}

func accounts(page *render.Page, accounts []snapshot.Account, when string) {
	for i := range accounts {
		a := &accounts[i]
		total, all := "not known", int64(0)
		if a.Known {
			total, all = bytefmt.Format(a.Total), a.Total
		}
		if a.Inferred {
			total += " (the whole GPU's)"
		}
		page.Heading("%s (%d) on GPU %s%s: %s%s", a.Process, a.PID, a.GPU, when, total, beside(a))
		t := table.New(table.Bytes("BYTES"), table.Share("OF ALL"), table.Text("WHAT"))
		for _, l := range a.Lines {
			var below []string
			if l.Note != "" {
				below = []string{l.Note}
			}
			t.AddAbove(below, l.Bytes, table.Part{Of: l.Bytes, Whole: all}, l.Name)
		}
		t.Text(page)
	}
}

// beside compares the driver's figure with the total.
func beside(a *snapshot.Account) string {
	switch {
	case !a.Compared:
		return ""
	case a.Difference == 0:
		return ", as nvidia-smi says"
	case a.Difference > 0:
		return fmt.Sprintf("; nvidia-smi says %s more, which was not seen", bytefmt.Format(a.Difference))
	default:
		return fmt.Sprintf("; nvidia-smi says %s less", bytefmt.Format(-a.Difference))
	}
}

func failures(page *render.Page, s *snapshot.Snapshot, o Options) {
	var calls, outOfMemory int64
	for i := range s.Processes {
		calls += s.Processes[i].Failed
		outOfMemory += s.Processes[i].OutOfMemory
	}
	by := stackBy(s.Several())
	shown, stacks, _ := most(s, by, func(v *snapshot.Values) int64 { return v.FailedObjects }, o)
	if calls > 0 || stacks > 0 {
		page.Heading("Calls of CUDA that failed: %d, of which %d for want of memory. One request can fail in several calls", calls, outOfMemory)
	}
	if stacks == 0 {
		return
	}
	t, add := stackTable(by, table.Count("CALLS"), table.TextRight("EACH ASKED FOR"))
	for _, x := range shown {
		add(by.values(x), x.FailedObjects, each(x.FailedObjects, x.FailedBytes, true))
	}
	t.Text(page)
}

// Report writes a page about a saved profile or a moment of a recording: an overview of one
// screen; or with By, a row for each combination of values and the stacks under it; or with
// Segments, the segments of caching allocators.
func Report(w io.Writer, s *snapshot.Snapshot, o Options) error {
	s, o = s.ByRank(), o.byRank()
	page := render.NewPage(w, o.Width, o.Color)
	page.Heading("GPU memory of %s", render.Target(s))
	x := newOverview(s, o)
	switch {
	case o.Before != nil:
		between(page, o.Before, s)
	case o.Turnover:
		page.Line("What was allocated and freed until %v after the trace began", rounded(s.Meta.Duration))
	default:
		x.moment(page, onGPU(s))
	}
	if o.By == nil && !o.Segments {
		x.show(page)
		return page.Flush("write report")
	}
	var asked []string
	if o.Segments {
		for i := range s.Allocators {
			page.Line("%s", divided(&s.Allocators[i]))
		}
		for _, x := range o.Settings {
			page.Line("%s (%d): %s", x.Process, x.PID, x.Says)
		}
		allocators(page, s.Allocators, "")
	} else {
		rows := o.top(math.MaxInt)
		n := rows
		if o.Top == 0 {
			rows, n = math.MaxInt, 3
		}
		if o.Turnover {
			o.By = o.By.exact()
		}
		by, samples := o.By.samples(s)
		asked = slices.DeleteFunc(slices.Clone(by), func(c column) bool { return c.beside }).names()
		lacking(page, asked, samples, &s.Meta)
		by.summary(page, samples, o.face(s))
		by.show(page, samples, s.Accounts, o.face(s), rows, n)
	}
	whole := o.whole(s)
	page.Losses(loss.Telling(whole.Loss), nil)
	about(page, whole.Notes)
	switch {
	case !o.Segments:
		afterBy(page, &o, asked)
	case isRecording(o.File):
		nextCommands(page, []Command{whatIf(o.File), theWords})
	}
	return page.Flush("write report")
}

// withoutMemo leaves out how often the memo of stacks served, which changes nothing for a reader.
func withoutMemo(notes []string) []string {
	return slices.DeleteFunc(slices.Clone(notes), func(n string) bool { return strings.Contains(n, " from the memo, ") })
}

// about writes the notes of a trace.
func about(page *render.Page, notes []string) {
	notes = withoutMemo(notes)
	if len(notes) > 0 {
		page.Heading("About this trace")
	}
	for _, n := range notes {
		if strings.HasPrefix(n, "loss ") {
			page.Warn("  %s", n)
		} else {
			page.Line("  %s", n)
		}
	}
}

// Summary writes a page for the end of a trace whose stacks are written elsewhere: totals,
// segments, failed calls, and every loss. verbose adds the counters that are zero.
func Summary(w io.Writer, s *snapshot.Snapshot, verbose bool) error {
	s = s.ByRank()
	page := traced(w, s, Options{})
	failures(page, s, Options{Top: 3})
	lost, notes := loss.Telling(s.Loss), withoutMemo(s.Notes)
	if verbose {
		lost, notes = s.Loss, s.Notes
	}
	page.Losses(lost, notes)
	if verbose {
		page.Heading("Counters that are zero")
		for _, c := range loss.Shown(s.Loss) {
			if c.Value == 0 {
				page.Line("  %s (%s)", c.Help, c.Name)
			}
		}
	}
	return page.Flush("write summary")
}
