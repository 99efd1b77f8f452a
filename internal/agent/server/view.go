package server

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/output/web"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

const (
	// shownParts bounds the parts of a bar that are told apart, shownProcesses and
	// shownStacks the rows of a page, and shownFrames those of a stack.
	shownParts     = 9
	shownProcesses = 200
	shownStacks    = 20
	shownFrames    = 128
	// colours are the page's, as the style sheet has them.
	colours = 12
	// maxColours bounds the owners that keep theirs.
	maxColours = 256
)

// A view is what the page shows of one moment, in words.
type view struct {
	Host, Version string
	About         []string
	GPUs          []gpuView
	Processes     []processView
	MoreProcesses int
	Stacks        []stackView
	MoreStacks    int
	Incidents     []incidentView
	Notes         []string
	Choice        choice
	LoggedIn      bool
	Ended         string
	Metrics       bool
	Workloads     bool
}

// A choice is what the flame graph can be of.
type choice struct{ GPUs, Processes []option }

type option struct{ Value, Text string }

type gpuView struct {
	Label, Name string
	Amount      string // in words
	Bars        []bar
}

// A bar is a GPU's memory, by one of the things that it can be told apart by.
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
	PID                                    int
	Name, Workload, GPUs                   string
	Held, Inuse, Peak, Grown, Rate, Failed string
	Unexplained                            string
	Exited                                 bool
}

type stackView struct {
	Bytes, Grown, Objects, Owner, Kind, GPU, Process, Title string
	Key                                                     string
	Frames                                                  []string
}

type incidentView struct {
	Number                          int64
	Time, Process, GPU, Asked, Came string
}

// view makes the page's view of a Picture.
func (s *Server) view(p *live.Picture) *view {
	v := &view{Host: web.Clean(cmp.Or(s.guard.host, "this machine")), Version: web.Clean(s.opts.Version), Ended: p.Ended, LoggedIn: s.guard.token() != "", Metrics: s.opts.Metrics != nil}
	part := p.Part(&live.Scope{}, "", live.ByInuse, false)
	v.about(p)
	for i := range part.GPUs {
		v.GPUs = append(v.GPUs, s.gpuView(p, &part.GPUs[i]))
		v.Choice.GPUs = append(v.Choice.GPUs, option{part.GPUs[i].Label, web.Clean(part.GPUs[i].Label)})
	}
	for i := range part.Processes {
		x := &part.Processes[i]
		if i >= shownProcesses {
			v.MoreProcesses = len(part.Processes) - i
			break
		}
		row := s.processView(x)
		v.Workloads = v.Workloads || row.Workload != ""
		v.Processes = append(v.Processes, row)
		v.Choice.Processes = append(v.Choice.Processes, option{utoa(uint32(x.PID)), processName(x.Name, x.PID)})
	}
	for _, x := range part.Stacks {
		switch {
		case x.Sample.InuseBytes <= 0:
		case len(v.Stacks) >= shownStacks:
			v.MoreStacks++
		default:
			v.Stacks = append(v.Stacks, stackViewOf(x))
		}
	}
	for _, in := range s.incidents.list() {
		came := "not recovered"
		if in.Recovered {
			came = "recovered"
		}
		v.Incidents = append(v.Incidents, incidentView{in.Number, in.Time.UTC().Format(time.RFC3339), processName(in.Process, in.PID), web.Clean(in.GPU), bytefmt.Format(in.Requested), came})
	}
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

// about says what is traced, since when, and what that costs.
func (v *view) about(p *live.Picture) {
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
		add("the trace took %.1f%% of a processor, and %s at most", 100*p.Load, bytefmt.Format(c.Memory))
	}
}

// gpuView makes the bars of a GPU: its memory by process and by owner, what no cause is
// known of, what others hold, and what is free.
func (s *Server) gpuView(p *live.Picture, g *live.GPU) gpuView {
	out := gpuView{Label: web.Clean(g.Label), Name: web.Clean(g.Name)}
	whole := max(g.Total, g.Held, 1)
	held := "traced processes hold " + bytefmt.Format(g.Held)
	if g.Part {
		held = "traced processes hold at least " + bytefmt.Format(g.Held)
	}
	if g.Total > 0 {
		out.Amount = fmt.Sprintf("%s of %s used (%s)", bytefmt.Format(g.Used), bytefmt.Format(g.Total), bytefmt.Percent(g.Used, g.Total)) + "; " + held
	} else {
		out.Amount = held
	}
	by := map[string]map[string]int64{"process": {}, "owner": {}}
	for i := range p.Accounts {
		if a := &p.Accounts[i]; a.GPU == g.Label {
			by["process"][processName(a.Process, a.PID)] += a.Total
		}
	}
	for _, x := range p.Stacks {
		if x.Sample.GPU != g.Label || !render.OnGPU(x.Sample.Kind) {
			continue
		}
		if unexplained(x.Sample) {
			by["owner"][causeUnknown] += x.Sample.InuseBytes
		} else {
			by["owner"][cmp.Or(web.Clean(x.Sample.Owner), "not known")] += x.Sample.InuseBytes
		}
	}
	for _, name := range []string{"process", "owner"} {
		out.Bars = append(out.Bars, bar{By: name, Parts: s.parts(name, by[name], whole, g)})
	}
	return out
}

// untraced stands for what of a GPU's memory no traced process holds.
const untraced = "not traced, or the driver's own"

// causeUnknown stands for memory in lines of accounts that name no cause.
const causeUnknown = "cause not known"

// unexplained tells whether a sample is of such a line.
func unexplained(x *snapshot.Sample) bool {
	switch x.Frames()[0].Lines[0].Function {
	case state.LineBefore, state.LineRemainder, state.LineUnknown:
		return true
	}
	return false
}

// parts makes the parts of a bar, the largest first.
func (s *Server) parts(by string, sums map[string]int64, whole int64, g *live.GPU) (out []part) {
	rest := sums[causeUnknown]
	delete(sums, causeUnknown)
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
	if g.Total > 0 {
		if rest, known := s.history.rest(g.Label); known {
			add(untraced, "untraced", rest)
			add("free", "free", g.Total-g.Held-max(rest, 0))
		} else {
			// What is held now, and what was in use when NVML was read.
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

// colour returns the class of what a bar's part is of: an owner keeps its own.
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

func (s *Server) processView(x *live.Process) processView {
	out := processView{PID: x.PID, Name: web.Clean(cmp.Or(x.Name, "?")), GPUs: web.Clean(strings.Join(x.GPUs, ", ")), Exited: x.Exited,
		Held: bytefmt.Format(x.Held), Inuse: bytefmt.Format(x.Inuse), Peak: bytefmt.Format(x.Peak), Unexplained: some(x.Unexplained),
		Grown: someSigned(x.Grown)}
	if !x.Known && len(x.GPUs) > 0 {
		out.Held = "≥ " + out.Held
	}
	if x.Rate >= 1 {
		out.Rate = bytefmt.Format(int64(x.Rate)) + "/s"
	}
	if x.Failed > 0 {
		out.Failed = fmt.Sprintf("%d, %d for want of memory", x.Failed, x.OutOfMemory)
	}
	if s.opts.Workload != nil {
		out.Workload = web.Clean(s.opts.Workload(x.PID))
	}
	return out
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
	out := stackView{Bytes: bytefmt.Format(s.InuseBytes), Grown: someSigned(x.Grown), Objects: bytefmt.Count(s.InuseObjects), Owner: web.Clean(s.Owner), Kind: web.Clean(s.Kind),
		GPU: web.Clean(s.GPU), Process: processName(s.Process, s.PID), Title: web.Clean(render.Telling(s.Frames(), 3)), Key: live.SiteText(&x.ID.Site)}
	for _, l := range s.Frames() {
		for i := range l.Lines {
			if len(out.Frames) == shownFrames {
				out.Frames = append(out.Frames, "…")
				return out
			}
			line := &l.Lines[i]
			where := ""
			if line.File != "" {
				where = " " + line.File
				if line.Line > 0 {
					where += fmt.Sprintf(":%d", line.Line)
				}
			}
			out.Frames = append(out.Frames, web.Clean(line.Function+where))
		}
	}
	return out
}
