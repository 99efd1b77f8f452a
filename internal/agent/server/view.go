package server

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/output/html"
	"github.com/gpumemtrace/gpumemtrace/internal/output/web"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

const (
	// shownParts bounds the separate parts of a bar, shownProcesses and shownStacks the rows
	// of a table, and shownFrames the frames of a stack.
	shownParts     = 9
	shownProcesses = 200
	shownStacks    = 20
	shownFrames    = 128
	// colours is the number of colours in the style sheet.
	colours = 12
	// maxColours bounds the owners that keep their colour.
	maxColours = 256
)

// A view has the texts that the page shows of one moment.
type view struct {
	Host, Version string
	About         []string
	GPUs          []gpuView
	NoGPUs        string // the reason why GPUs is empty
	Processes     processTable
	Meaning       string // of figures of processes
	Stacks        []stackView
	MoreStacks    int
	Windowed      []windowedView
	Window        string // in which memory grew, "" while that is not known
	Events        events
	Past          pastView
	Notes         []string
	Choice        choice
	Ended         string
	Metrics       bool
}

// A choice has what a reader can choose.
type choice struct{ GPUs, Processes, Groupings []option }

type option struct{ Value, Text string }

type gpuView struct {
	Label, Name string
	Amount      string // in words
	Bars        []bar

	to html.Address // shows this GPU alone, "" where that is so
}

// A bar is the memory of a GPU, divided by process, by a group of them or by owner.
type bar struct {
	By    string
	Parts []part
}

type part struct {
	Name, Bytes string
	Class       string
	X, Width    string // in thousandths of the bar

	bytes int64
}

type processView struct {
	PID                           int
	Name, User, Workload, Command string
	Ended                         string // says that it is gone, "" while it lives
	Figures                       figures
}

// figures are those of a process, or sums of several.
type figures struct {
	GPUs                                                string
	Held, Inuse, Peak, Grown, Rate, Failed, Unexplained string
}

type stackView struct {
	Bytes, Grown, Objects, Owner, Kind, GPU, Process, Title string
	Key                                                     string
	Holder                                                  string // "" for none that is known
	Frames                                                  []string
}

// view returns the page's view of the chosen part of a status.
func (s *Server) view(p *live.Status, c *chosen) *view {
	v := &view{Host: web.Clean(cmp.Or(s.guard.host, "this machine")), Version: web.Clean(s.opts.Version), Ended: p.Ended, Metrics: s.opts.Metrics != nil}
	part := p.Select(&live.Scope{}, "", live.ByInuse, false)
	for i := range part.GPUs {
		v.Choice.GPUs = append(v.Choice.GPUs, option{part.GPUs[i].Label, web.Clean(part.GPUs[i].Label)})
	}
	for i := range part.Processes[:min(len(part.Processes), shownProcesses)] {
		x := &part.Processes[i]
		v.Choice.Processes = append(v.Choice.Processes, option{utoa(uint32(x.PID)), processName(x.Name, x.PID)})
	}
	v.Events = s.events(p, part.Processes, c)
	whole := part
	if c.filter != (filter{}) {
		part = p.Select(c.scope(), "", live.ByInuse, false)
	}
	v.about(p)
	for i := range part.GPUs {
		g := &part.GPUs[i]
		if c.pid != 0 && !slices.ContainsFunc(part.Accounts, func(a snapshot.Account) bool { return a.GPU == g.Label }) {
			continue
		}
		v.GPUs = append(v.GPUs, s.gpuView(whole, g, c))
	}
	switch {
	case len(v.GPUs) > 0:
	case c.pid != 0:
		v.NoGPUs = "The process holds no memory on a GPU."
	default:
		v.NoGPUs = "No traced process holds memory on a GPU, and NVML was not asked."
	}
	end := p.Meta.Start.Add(p.Elapsed)
	period, peaks := s.history.holdings(c, end.Add(-c.period), end)
	all := rows(part.Processes, period, end)
	v.Choice.Groupings = groupingsOf(all, c.by)
	v.Processes.Grouped = c.by != ""
	v.Processes.Groups, v.Processes.More = groupsOf(all, c.by, peaks)
	v.Meaning = "peak: the most held in the last " + periodText(c.period)
	if p.Window > 0 {
		v.Window = lasted(p.Window)
		v.Meaning += "; grown: in the last " + v.Window
	}
	v.Past = s.past(p, c)
	for _, x := range part.Stacks {
		switch {
		case x.Sample.InuseBytes <= 0:
		case len(v.Stacks) >= shownStacks:
			v.MoreStacks++
		default:
			v.Stacks = append(v.Stacks, stackViewOf(x))
		}
	}
	v.Windowed = windowedViews(p, c)
	for _, n := range p.Notes {
		v.Notes = append(v.Notes, web.Clean(n))
	}
	for _, c := range p.Lost {
		v.Notes = append(v.Notes, fmt.Sprintf("%d %s (%s)", c.Value, web.Clean(c.Help), web.Clean(c.Name)))
	}
	return v
}

func processName(name string, pid int) string {
	return fmt.Sprintf("%s (%d)", web.Clean(cmp.Or(name, "?")), pid)
}

// about adds the target, the time, the versions and the cost of the trace.
func (v *view) about(p *live.Status) {
	add := func(format string, args ...any) { v.About = append(v.About, fmt.Sprintf(format, args...)) }
	add("%s", web.Clean(p.Meta.Target))
	add("%s", p.Meta.Start.Add(p.Elapsed).UTC().Format("2006-01-02 15:04:05 UTC"))
	if p.Meta.Driver != "" {
		add("driver %s", web.Clean(p.Meta.Driver))
	}
	if v.Version != "" {
		add("gpumemtrace %s", v.Version)
	}
	if p.Interval > 0 {
		add("%.0f events a second", p.EventRate)
	}
	if c := p.Cost; c != nil {
		add("the trace used %.1f%% of a processor, and at most %s of memory", 100*p.Load, bytefmt.Format(c.Memory))
	}
}

// gpuView returns the bars of a GPU: its memory by process, or by a group of them, and by
// owner. Each bar also has the memory without a known cause, the memory of others, and the
// free memory. Of a chosen process, all other processes are one part.
func (s *Server) gpuView(p *live.Status, g *live.GPU, c *chosen) gpuView {
	out := gpuView{Label: web.Clean(g.Label), Name: web.Clean(g.Name), to: c.addressOf(g.Label)}
	whole := max(g.Total, g.Held, 1)
	held := "traced processes hold " + bytefmt.Format(g.Held)
	if !g.Known {
		held = "traced processes hold at least " + bytefmt.Format(g.Held)
	}
	if g.Total > 0 {
		out.Amount = fmt.Sprintf("%s of %s used (%s)", bytefmt.Format(g.Used), bytefmt.Format(g.Total), bytefmt.Percent(g.Used, g.Total)) + "; " + held
	} else {
		out.Amount = held
	}
	names := map[int]string{}
	for i := range p.Processes {
		if x := &p.Processes[i]; names[x.PID] == "" || !x.Exited {
			names[x.PID] = groupName(x, c.by)
		}
	}
	group, owner := map[string]int64{}, map[string]int64{}
	for i := range p.Accounts {
		a := &p.Accounts[i]
		switch name := cmp.Or(names[a.PID], processName(a.Process, a.PID)); {
		case a.GPU != g.Label:
		case c.pid != 0 && a.PID != c.pid:
			group[otherProcesses] += a.Total
		default:
			group[name] += a.Total
		}
	}
	for _, x := range p.Stacks {
		switch {
		case x.Sample.GPU != g.Label || !snapshot.OnGPU(x.Sample.Kind):
		case c.pid != 0 && x.Sample.PID != c.pid:
			owner[otherProcesses] += x.Sample.InuseBytes
		case unexplained(x.Sample):
			owner[causeUnknown] += x.Sample.InuseBytes
		default:
			owner[cmp.Or(web.Clean(x.Sample.Owner), "not known")] += x.Sample.InuseBytes
		}
	}
	first := cmp.Or(c.by, "process")
	out.Bars = []bar{{By: first, Parts: s.parts(first, group, whole, g)}, {By: "owner", Parts: s.parts("owner", owner, whole, g)}}
	return out
}

// otherProcesses names the memory of processes that are not chosen.
const otherProcesses = "other processes"

// untraced names the used memory of a GPU that no traced process holds.
const untraced = "not traced, or the driver's own"

// causeUnknown names the memory in lines of accounts without a cause.
const causeUnknown = "cause not known"

// unexplained reports whether a sample is of such a line.
func unexplained(x *snapshot.Sample) bool {
	switch x.Frames()[0].Lines[0].Function {
	case state.LineBefore, state.LineRemainder, state.LineUnknown:
		return true
	}
	return false
}

// parts returns the parts of a bar, the largest first.
func (s *Server) parts(by string, sums map[string]int64, whole int64, g *live.GPU) (out []part) {
	rest, unchosen := sums[causeUnknown], sums[otherProcesses]
	delete(sums, causeUnknown)
	delete(sums, otherProcesses)
	maps.DeleteFunc(sums, func(_ string, bytes int64) bool { return bytes <= 0 })
	names := slices.SortedFunc(maps.Keys(sums), func(a, b string) int { return cmp.Or(cmp.Compare(sums[b], sums[a]), strings.Compare(a, b)) })
	var others int64
	for i, name := range names {
		if i >= shownParts && len(names) > shownParts+1 {
			others += sums[name]
		} else {
			out = append(out, part{Name: name, Class: s.colour(by, name), bytes: sums[name]})
		}
	}
	add := func(name, class string, bytes int64) {
		if bytes > 0 {
			out = append(out, part{Name: name, Class: class, bytes: bytes})
		}
	}
	add(fmt.Sprintf("%d others", len(names)-shownParts), "others", others)
	add(causeUnknown, "unknown", rest)
	add(otherProcesses, "others", unchosen)
	if g.Total > 0 {
		if rest, known := s.history.rest(g.Label); known {
			add(untraced, "untraced", rest)
			add("free", "free", g.Total-g.Held-max(rest, 0))
		} else {
			// Held is of now, and Used of NVML's last reading.
			add("about: "+untraced, "untraced", g.Used-g.Held)
			add("about: free", "free", g.Total-max(g.Used, g.Held))
		}
	}
	var at int64
	for i := range out {
		x := &out[i]
		x.X, x.Width = thousandths(at, whole), thousandths(x.bytes, whole)
		x.Bytes = bytefmt.Format(x.bytes)
		at += x.bytes
	}
	return out
}

func thousandths(part, whole int64) string {
	return fmt.Sprintf("%.2f", 1000*float64(part)/float64(whole))
}

// colour returns the class of a bar's part. An owner keeps its colour.
func (s *Server) colour(by, name string) string {
	s.coloursMu.Lock()
	defer s.coloursMu.Unlock()
	of := s.colours[by]
	if of == nil {
		of = map[string]int{}
		s.colours[by] = of
	}
	if len(of) > maxColours {
		clear(of)
	}
	if _, ok := of[name]; !ok {
		of[name] = len(of)
	}
	return fmt.Sprintf("c%d", of[name]%colours)
}

func some(n int64) string {
	if n == 0 {
		return ""
	}
	return bytefmt.Format(n)
}

func someSigned(n int64) string {
	if n == 0 {
		return ""
	}
	return bytefmt.Signed(n)
}

func stackViewOf(x *live.Stack) stackView {
	s := x.Sample
	return stackView{Bytes: bytefmt.Format(s.InuseBytes), Grown: someSigned(x.Grown), Objects: bytefmt.Count(s.InuseObjects), Owner: web.Clean(s.Owner), Kind: web.Clean(s.Kind),
		GPU: web.Clean(s.GPU), Process: processName(s.Process, s.PID), Title: web.Clean(render.Brief(s.Frames(), 3)), Key: live.SiteText(&x.ID.Site), Holder: web.Clean(render.Shorten(x.Holder(), 200)), Frames: render.Frames(s.Frames(), shownFrames, web.Clean)}
}
