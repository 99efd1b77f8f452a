package export

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/keyed"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/findings"
	"github.com/gpumemtrace/gpumemtrace/internal/output/table"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// An overview is the first screen of a report: who holds how much, for what, and which lines
// of the program hold most.
type overview struct {
	s      *snapshot.Snapshot
	o      Options
	shown  figureOf           // of which rows are sorted
	title  string             // of its column
	other  figureOf           // beside it, nil for none
	beside string             // the title of that column
	end    []*snapshot.Sample // samples at the end of the recording, nil unless other is of them

	verdict *findings.Verdict // what is wrong, nil if that is not known
}

// A figureOf is a figure of a sum of samples, in bytes.
type figureOf func(*snapshot.Values) int64

func inUse(v *snapshot.Values) int64      { return v.InuseBytes }
func heldAtPeak(v *snapshot.Values) int64 { return v.PeakBytes }

// newOverview decides which figures are shown. A recording is shown at a moment, beside its
// end. A profile has what its processes held at their peaks too, which is shown if all of them have
// ended.
func newOverview(s *snapshot.Snapshot, o Options) *overview {
	x := &overview{s: s, o: o, shown: inUse, title: "IN USE", other: heldAtPeak, beside: "AT PEAK"}
	switch m := o.Moment; {
	case m != nil && m.At >= m.duration() && m.At == m.Peak:
		x.title, x.other, x.beside = "AT PEAK", nil, ""
	case m != nil && m.At >= m.duration():
		x.title = "AT END"
	case m != nil:
		x.other, x.beside, x.end = inUse, "AT END", onGPU(m.End)
		if m.At == m.Peak {
			x.title = "AT PEAK"
		}
	case s.Meta.Moment != "": // the peaks are at other moments, or at this one
		x.other, x.beside = nil, ""
		if s.Meta.Peaks {
			x.title = "AT PEAK"
		}
	case s.Meta.Peaks:
		x.shown, x.title, x.other, x.beside = heldAtPeak, "AT PEAK", inUse, "AT END"
	}
	return x
}

// whole returns what knows the losses and notes of the whole recording that s is a moment of, or s.
func (o *Options) whole(s *snapshot.Snapshot) *snapshot.Snapshot {
	if o.Moment != nil && o.Moment.End != nil {
		return o.Moment.End
	}
	return s
}

// duration is how long the recording is.
func (m *Moment) duration() time.Duration { return m.End.Meta.Duration }

// onGPU returns the samples of memory on GPUs.
func onGPU(s *snapshot.Snapshot) []*snapshot.Sample {
	return slices.DeleteFunc(pointers(s.Samples), func(x *snapshot.Sample) bool { return !snapshot.OnGPU(x.Kind) })
}

func sumOf(samples []*snapshot.Sample) (sum snapshot.Values) {
	for _, s := range samples {
		sum.Add(&s.Values)
	}
	return sum
}

// show writes the page below its moment.
func (x *overview) show(page *render.Page) {
	samples := onGPU(x.s)
	x.failure(page)
	x.wrong(page)
	x.holders(page, samples)
	x.purposes(page, samples)
	x.elsewhere(page)
	x.allocators(page)
	x.lines(page, samples)
	lacking(page, []string{"line"}, samples, &x.s.Meta)
	whole := x.o.whole(x.s)
	windowsByLine(page, whole, x.o)
	page.Losses(loss.Telling(whole.Loss), nil)
	about(page, whole.Notes)
	x.next(page)
}

// wrong writes what is wrong.
func (x *overview) wrong(page *render.Page) {
	if sum := sumOf(onGPU(x.s)); x.o.Moment != nil && x.shown(&sum) > 0 {
		x.verdict = findings.Find(x.s, x.o.Moment.End, x.o.Settings...)
		x.verdict.Show(page, x.o.Failures.Last != nil)
	}
}

// moment says which moment is shown, and what the others hold.
func (x *overview) moment(page *render.Page, samples []*snapshot.Sample) {
	m := x.o.Moment
	if m == nil {
		page.Line("%s", moment(x.s))
		return
	}
	sum := sumOf(samples)
	now := bytefmt.Format(x.shown(&sum))
	began := x.s.Meta.Start.UTC().Format("2006-01-02 15:04:05 UTC")
	end := sumOf(onGPU(m.End))
	switch {
	case sum == (snapshot.Values{}) && end == (snapshot.Values{}):
		page.Line("Nothing yet: the trace began at %s and saw no memory on a GPU in %v.", began, rounded(m.duration()))
	case m.At == m.Peak:
		page.Line("At the peak (--at peak), %v after the trace began at %s%s: %s. At the end, after %v: %s%s (--at end).", rounded(m.At), began, inStep(x.s), now, rounded(m.duration()), bytefmt.Format(end.InuseBytes), exited(m.End))
		if m.Peak >= m.duration() && !m.End.Ended() {
			page.Line("Memory still grew when the trace ended: the program's own peak may be higher.")
		}
		x.mostTensors(page, x.shown(&sum))
	case m.At >= m.duration():
		page.Line("At the end, %v after the trace began at %s: %s%s. The peak was at %v (--at peak).", rounded(m.At), began, now, exited(m.End), rounded(m.Peak))
	default:
		if x.shown(&sum) == 0 {
			now = "nothing was held"
			if m.At < m.First {
				now += fmt.Sprintf(" yet (the first memory came at %v)", rounded(m.First))
			}
			now += x.before()
		}
		when := fmt.Sprintf("%v after the trace began", rounded(m.At))
		switch {
		case m.At == 0:
			when = "When the trace began"
		case m.At == m.Most && m.Tensors > 0:
			when = "When tensors held most, " + when
		}
		page.Line("%s at %s: %s. The peak was at %v (--at peak). At the end, after %v: %s%s (--at end).", when, began, now, rounded(m.Peak), rounded(m.duration()), bytefmt.Format(end.InuseBytes), exited(m.End))
	}
}

// mostTensors says when tensors held most, if they held clearly less at the peak: a small request late in a run may
// make the peak of what PyTorch reserved.
func (x *overview) mostTensors(page *render.Page, peak int64) {
	m, now := x.o.Moment, int64(0)
	for i := range x.s.Samples {
		if s := &x.s.Samples[i]; s.Kind == snapshot.Tensor {
			now += s.InuseBytes
		}
	}
	if x.s.Meta.Windows == nil && m.Tensors-now > peak/50 {
		page.Line("Tensors held most at %v: %s, and %s at the peak (--at tensor-peak).", rounded(m.Most), bytefmt.Format(m.Tensors), bytefmt.Format(now))
	}
}

// before says how long before the last failure the moment is, "" if none is later.
func (x *overview) before() string {
	f := x.o.Failures.Last
	if f == nil {
		return ""
	}
	until := f.Time.Sub(x.s.Meta.Start) - x.o.Moment.At
	if until < 0 {
		return ""
	}
	return fmt.Sprintf(", %v before the last request failed for want of memory (--at oom)", rounded(until))
}

// inStep says in which training step the peak of one process is.
func inStep(s *snapshot.Snapshot) string {
	if len(s.Steps) != 1 || !s.Steps[0].Begun || s.Meta.Windows != nil {
		return ""
	}
	return fmt.Sprintf(", in training step %d (--steps)", s.Steps[0].Seen+1)
}

// failure says that requests failed for want of memory, which of them was the last one that did not
// recover, and what came of it.
func (x *overview) failure(page *render.Page) {
	f := &x.o.Failures
	if f.All == 0 {
		return
	}
	if f.Last == nil {
		page.Line("%s, and recovered: the caching allocator gave memory back, and asked again (--oom).", f.counted())
		return
	}
	who := ""
	if _, known := freeThen(f.Last); known || ownRefusal(f.Last) {
		who = " " + refusal(f.Last)
	}
	page.Warn("%s %s after the trace began: %s (%d) asked for %s%s (--oom).%s%s", f.says(), rounded(f.Last.Time.Sub(x.s.Meta.Start)), f.Last.Process, f.Last.PID,
		bytefmt.Format(wanted(f.Last)), atLine(f.Last), who, x.afterwards(f.Last))
}

// afterwards says whether a failure ended its process.
func (x *overview) afterwards(o *snapshot.OutOfMemory) string {
	if x.o.Moment == nil {
		return ""
	}
	end := x.o.Moment.End
	i := slices.IndexFunc(end.Processes, func(p snapshot.Process) bool { return p.PID == o.PID })
	if i < 0 {
		return ""
	}
	made := func(s *snapshot.Snapshot) (n int64) {
		for i := range s.Samples {
			if x := &s.Samples[i]; x.PID == o.PID && x.Kind == snapshot.Tensor {
				n += x.AllocObjects
			}
		}
		return n
	}
	all, left := made(end), end.Meta.Start.Add(end.Meta.Duration).Sub(o.Time).Round(10*time.Millisecond)
	after := all - made(o.Snapshot)
	switch exited := end.Processes[i].Exited; {
	case exited && all > 0 && after <= 0:
		return fmt.Sprintf(" It ended the process, which made no tensor afterwards and was gone within %v.", left)
	case exited && all > 0:
		return fmt.Sprintf(" The program went on: it made %s, and was gone within %v.", bytefmt.Counted(after, "more tensor"), left)
	case exited:
		return fmt.Sprintf(" The process was gone within %v.", left)
	}
	return fmt.Sprintf(" The process still ran when the trace ended, %v later.", left)
}

// rounded drops digits that nobody reads.
func rounded(d time.Duration) time.Duration {
	return d.Round(time.Millisecond)
}

// exited says that memory is shown as its processes left it.
func exited(s *snapshot.Snapshot) string {
	if !s.Ended() {
		return ""
	}
	return ", which the program held when it ended"
}

// holders writes a row for each process on each GPU, if there are several.
func (x *overview) holders(page *render.Page, samples []*snapshot.Sample) {
	type key struct {
		gpu, process string
		pid          int
	}
	of := func(s *snapshot.Sample) key { return key{s.GPU, s.Process, s.PID} }
	whos := map[int]*snapshot.Who{}
	for _, s := range slices.Concat(x.end, samples) {
		whos[s.PID] = cmp.Or(s.Who, whos[s.PID])
	}
	now, end := gather(samples, of), gather(x.end, of)
	for k := range end {
		keyed.At(now, k)
	}
	if len(now) < 2 && len(whos) < 2 {
		x.holder(page)
		return
	}
	keys := sorting.Keys(now, func(a, b key) int {
		return cmp.Or(cmp.Compare(x.shown(&now[b].Values), x.shown(&now[a].Values)), cmp.Compare(a.gpu, b.gpu), cmp.Compare(a.pid, b.pid), cmp.Compare(a.process, b.process))
	})
	t := table.New(table.Bytes(x.title), x.besideIt(), table.Text("GPU"), table.Text("PROCESS"), table.SomeCount("PID"), table.Text("USER"), table.Ending("WORKLOAD"), table.Beginning("COMMAND"))
	for _, k := range keys {
		who := cmp.Or(whos[k.pid], &snapshot.Who{})
		t.Add(x.shown(&now[k].Values), x.otherOf(now[k], end[k]), k.gpu, cmp.Or(k.process, "not known"), k.pid, who.User, who.Home(), who.Command)
	}
	page.Heading("Who")
	t.Text(page)
}

// holder says whose the one process is.
func (x *overview) holder(page *render.Page) {
	if len(x.s.Processes) != 1 {
		return
	}
	p := &x.s.Processes[0]
	if p.Who == (snapshot.Who{}) {
		return
	}
	text := "The process "
	if rank := p.RankName(); rank != "" {
		text += "is " + rank + ". It "
	}
	text += "belongs to user " + cmp.Or(p.User, "[unknown]")
	if home := p.Home(); home != "" {
		text += " and to " + home
	}
	if p.Command != "" {
		text += ": " + render.Cut(p.Command, 150)
	}
	page.Heading("Who")
	page.Line("  %s", text)
}

// besideIt returns the column of the other figure, which is left out where there is none.
func (x *overview) besideIt() table.Column {
	if x.other == nil {
		return table.SomeBytes(x.beside)
	}
	return table.Bytes(x.beside)
}

// otherOf returns the figure beside the shown one: of the same samples, or of those at the end.
func (x *overview) otherOf(now, end *group) int64 {
	switch {
	case x.other == nil:
		return 0
	case x.end == nil:
		return x.other(&now.Values)
	case end == nil:
		return 0
	}
	return x.other(&end.Values)
}

// compared compares what is held with the driver's own figure, which nvidia-smi shows.
func (x *overview) compared() string {
	sum := snapshot.Account{Compared: len(x.s.Accounts) > 0 && (x.title != "AT PEAK" || x.o.Moment != nil)}
	for i := range x.s.Accounts {
		a := &x.s.Accounts[i]
		if !a.Compared || a.Difference == 0 && a.Driver != a.Total { // it has changed since it was asked
			return ""
		}
		sum.Difference += a.Difference
	}
	return beside(&sum)
}

// elsewhere says how much memory is on no GPU.
func (x *overview) elsewhere(page *render.Page) {
	all := map[string]int64{}
	for i := range x.s.Samples {
		if s := &x.s.Samples[i]; !snapshot.OnGPU(s.Kind) {
			all[snapshot.Class(s.Kind)] += x.shown(&s.Values)
		}
	}
	var parts []string
	for _, class := range slices.Sorted(maps.Keys(all)) {
		if all[class] != 0 {
			parts = append(parts, class+" memory "+bytefmt.Format(all[class]))
		}
	}
	if len(parts) > 0 {
		page.Line("  Not part of that: %s", strings.Join(parts, ", "))
	}
}

// allocators says how much caching allocators lose.
func (x *overview) allocators(page *render.Page) {
	if x.verdict == nil || len(x.verdict.Of("fragmentation")) == 0 {
		for i := range x.s.Allocators {
			text := fragmented(&x.s.Allocators[i])
			if n := x.s.Allocators[i].Total().Releasable; n > 0 {
				text += "; " + bytefmt.Format(n) + " is cached in empty segments"
			}
			page.Line("  %s (--segments)", text)
		}
	}
}

// lines writes the lines of the program that hold most.
func (x *overview) lines(page *render.Page, samples []*snapshot.Sample) {
	all := ownLines(slices.Concat(samples, x.end))
	of := func(s *snapshot.Sample) string { return cmp.Or(innermost(all)(s), absent("line", s)) }
	rows, end, other := gather(samples, of), gather(x.end, of), map[string]int64{}
	for k, g := range rows {
		other[k] = x.otherOf(g, end[k])
	}
	keys := slices.SortedFunc(maps.Keys(rows), func(a, b string) int {
		return cmp.Or(cmp.Compare(x.shown(&rows[b].Values), x.shown(&rows[a].Values)), cmp.Compare(other[b], other[a]), strings.Compare(a, b))
	})
	keys = slices.DeleteFunc(keys, func(k string) bool { return x.shown(&rows[k].Values) == 0 && other[k] == 0 })
	if len(keys) == 0 {
		return
	}
	shown := keys[:x.o.top(len(keys))]
	t := table.New(table.Bytes(x.title), table.SomeBytes("IN TENSORS"), table.Text("MOSTLY"), x.besideIt(), table.Beginning("LINE"))
	for _, k := range shown {
		g := rows[k]
		of := x.purpose(g.samples)
		t.Add(of.bytes, of.tensors, x.mostly(g), other[k], k)
	}
	page.Heading("The lines that hold most: %d of %d", len(shown), len(keys))
	t.Text(page)
}

// mostly names the cause of half of a row's memory or more, or else the two with most.
func (x *overview) mostly(g *group) string {
	causes, sum := map[string]int64{}, int64(0)
	for _, s := range g.samples {
		cause, bytes := snapshot.Cause(s), x.shown(&s.Values)
		switch {
		case cause == snapshot.Tensor:
			cause = "tensors"
		case (cause == "allocations" || cause == "cause not known") && s.Owner != "pytorch" && libraryNames[s.Owner] != "":
			cause = libraryNames[s.Owner]
		}
		causes[cause] += bytes
		sum += bytes
	}
	names := sorting.Largest(causes, itself)
	if len(names) > 1 && causes[names[0]] < sum/2 {
		return names[0] + ", " + names[1]
	}
	return names[0]
}

// users returns how many users' memory is shown.
func (x *overview) users() int {
	users := map[string]bool{}
	for i := range x.s.Samples {
		if who := x.s.Samples[i].Who; who != nil && who.User != "" {
			users[who.User] = true
		}
	}
	return len(users)
}

// next names the commands that answer the next questions.
func (x *overview) next(page *render.Page) {
	if x.o.File == "" || x.o.Before != nil {
		return
	}
	file, at := x.o.File, x.o.at()
	var commands []Command
	sum := sumOf(onGPU(x.s))
	nothing := x.shown(&sum) == 0
	if nothing && x.o.Failures.Last != nil {
		commands = append(commands, Command{"report " + file + " --at oom", "What was held when a request failed"})
	}
	if x.o.Failures.All > 0 {
		commands = append(commands, Command{"report " + file + " --oom", "Why it ran out of memory, and what would help"})
	}
	if x.users() > 1 {
		commands = append(commands, Command{"report " + file + " --by user" + at, "What each user holds"})
	}
	has := func(label func(*snapshot.Sample) string) bool {
		return slices.ContainsFunc(x.s.Samples, func(s snapshot.Sample) bool { return label(&s) != "" && x.shown(&s.Values) > 0 })
	}
	switch {
	case nothing:
	case has(operator):
		commands = append(commands, Command{"report " + file + " --by line,operator" + at, "Which operator made the memory of each line, and its stacks"})
	default:
		commands = append(commands, Command{"report " + file + " --by line" + at, "The stacks under each line"})
	}
	if has(func(s *snapshot.Sample) string { return s.Module }) {
		commands = append(commands, Command{"report " + file + " --by module,category" + at, "What the modules of the model hold, and what it is for"})
	}
	if !nothing && (x.o.Moment == nil || x.s.Meta.Driver != "") { // a snapshot of PyTorch knows nothing of the driver
		commands = append(commands, Command{"report " + file + " --by cause" + at, "What each byte is for, by the driver's call"})
	}
	if x.o.Moment != nil {
		if len(x.s.Allocators) > 0 {
			commands = append(commands, whatIf(file))
		}
		commands = append(commands, Command{"diff " + file, "What grew over the run"})
		if x.s.Meta.Windows != nil {
			commands = append(commands, Command{"report " + file + " --windows", "The stacks of tensors in windows"})
		}
		commands = append(commands, thePage(file))
	}
	nextCommands(page, append(commands, theWords))
}
