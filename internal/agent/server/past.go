package server

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/output/html"
	"github.com/gpumemtrace/gpumemtrace/internal/output/web"
)

// A pastView is what the page says of the peak of a period, and of a moment that the reader
// chose. The history knows owners and processes: stacks of the past are in a recording.
type pastView struct {
	Peak      string // in words, "" where nothing was held
	Title     string // of the chosen moment, "" for none
	GPUs      []gpuView
	Processes processTable
	Note      string // what the above lacks, "" for nothing
	Stacks    string // how to see the stacks of that moment
	Command   string // shows them, "" without a recording

	of chosen // now
}

// past returns what was held at the chosen moment.
func (s *Server) past(p *live.Status, c *chosen) (v pastView) {
	end := p.Meta.Start.Add(p.Elapsed)
	x := replay.Span{Start: end.Add(-c.period), End: c.period, Peak: c.period}
	v.of = *c
	peak, most := s.history.peak(c.filter, x.Start, end)
	if peak != nil {
		x.Peak = peak.at.Sub(x.Start)
		v.Peak = fmt.Sprintf("Peak of %s in the last %s: %s at %s", web.Clean(c.who()), periodText(c.period), bytefmt.Format(most), moment(peak.at, end))
	}
	if c.at == "" {
		return v
	}
	at, err := c.moment(x)
	if err != nil {
		return v
	}
	held := s.history.at(at)
	switch {
	case at.Before(x.Start) || at.After(end):
		v.Title, v.Note = "At "+moment(at, end), "That moment is not in the last "+periodText(c.period)+"."
		return v
	case held == nil || at.Sub(held.at) > 2*coarse:
		v.Title, v.Note = "At "+moment(at, end), "The history has no figures of that moment."
		return v
	}
	v.Title = "At " + moment(held.at, end)
	if peak != nil && held.at.Equal(peak.at) {
		v.Title += ", the peak"
	}
	s.held(&v, p, held, c)
	s.stacksOf(&v, held.at)
	return v
}

// held adds what processes and owners held at a moment.
func (s *Server) held(v *pastView, p *live.Status, held *amount, c *chosen) {
	all := slices.Clone(p.GPUs)
	for of := range held.by { // nobody may hold memory there now
		if !slices.ContainsFunc(all, func(g live.GPU) bool { return web.Clean(g.Label) == of.GPU }) {
			all = append(all, live.GPU{Label: of.GPU})
		}
	}
	slices.SortStableFunc(all, func(a, b live.GPU) int {
		return cmp.Or(cmp.Compare(len(a.Label), len(b.Label)), cmp.Compare(a.Label, b.Label))
	})
	for i := range all {
		label := web.Clean(all[i].Label)
		sum := held.of(filter{gpu: label})
		if c.gpu != "" && all[i].Label != c.gpu || c.pid != 0 && held.of(filter{c.pid, label}) == 0 {
			continue
		}
		g := gpuView{Label: label, Name: web.Clean(all[i].Name), to: c.addressOf(label), Amount: "traced processes held nothing"}
		if sum > 0 {
			g.Amount, g.Bars = "traced processes held "+bytefmt.Format(sum), s.barsOf(held, label, max(all[i].Total, sum), c)
		}
		v.GPUs = append(v.GPUs, g)
	}
	who := maps.Clone(held.who)
	maps.DeleteFunc(who, func(_ int64, x namedPresence) bool {
		return x.PID == 0 || c.gpu != "" && x.GPU != c.gpu || c.pid != 0 && x.PID != c.pid
	})
	then, _ := holdings([][]stake{held.stakes}, who, func(x *live.Process) string { return groupName(x, c.by) })
	rows := make([]listed, len(then))
	for i := range then {
		rows[i] = listed{Process: then[i].Process, past: true}
	}
	v.Processes.Grouped = c.by != ""
	v.Processes.Groups, v.Processes.More = groupsOf(rows, c.by, nil)
	if c.pid != 0 {
		v.Note = "The history does not divide a process by owner."
		if len(then) == 0 {
			v.Note = "The process held nothing then."
		}
	}
}

// barsOf returns the bars of what was held on a GPU.
func (s *Server) barsOf(held *amount, gpu string, whole int64, c *chosen) (out []bar) {
	group, owner := map[string]int64{}, map[string]int64{}
	for _, x := range held.stakes {
		switch of := held.who[x[0]]; {
		case of.GPU != gpu:
		case of.PID == 0 || c.pid != 0 && of.PID != c.pid:
			group[otherProcesses] += x[1]
		default:
			one := of.process()
			group[groupName(&one, c.by)] += x[1]
		}
	}
	for of, bytes := range held.by {
		if of.GPU == gpu {
			owner[cmp.Or(of.Owner, "not known")] += bytes
		}
	}
	only := &live.GPU{Label: gpu}
	first := cmp.Or(c.by, "process")
	if len(group) > 0 {
		out = append(out, bar{By: first, Parts: s.parts(first, group, whole, only)})
	}
	if c.pid == 0 {
		out = append(out, bar{By: "owner", Parts: s.parts("owner", owner, whole, only)})
	}
	return out
}

// stacksOf says how to see the stacks of a moment. The server does not play the recording
// itself: that takes as much memory as the trace had, and as much time as there are records.
func (s *Server) stacksOf(v *pastView, at time.Time) {
	var path string
	var since time.Time
	if s.opts.Recording != nil {
		path, since = s.opts.Recording()
	}
	switch {
	case path == "":
		v.Stacks = "The history contains no stacks. With --record, the agent keeps them."
	case at.Before(since):
		v.Stacks = "The stacks of then are gone: the recording, which keeps the newest --record-max bytes, begins at " + moment(since, at) + "."
	default:
		v.Stacks = "The stacks of then, in a terminal on this machine:"
		v.Command = "gpumemtrace report " + shellWord(path) + " --by line --at " + at.UTC().Format(time.RFC3339Nano)
		if os.Geteuid() == 0 {
			v.Command = "sudo " + v.Command
		}
	}
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// shellWord returns a word as a shell reads it.
func shellWord(s string) string {
	if plainWord.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// pastPart shows the peak, and the chosen moment.
func pastPart(v *pastView) html.Node {
	if v.Title == "" {
		return html.If(v.Peak != "", html.P(html.Text(v.Peak+". "), link(v.of.addressAt(atPeak), "Who held it then")))
	}
	return section(v.Title,
		html.H2(html.Text(v.Title)),
		html.Div(html.Class("gpus"), html.Each(v.GPUs, gpuBox)),
		html.If(len(v.Processes.Groups) > 0, tablePart(&v.Processes)),
		html.If(v.Note != "", quietLine(v.Note)),
		html.If(v.Stacks != "", html.Group(html.P(html.Text(v.Stacks)), html.If(v.Command != "", html.Pre(html.Class("command"), html.Text(v.Command))))),
		html.P(html.If(v.Peak != "", html.Group(link(v.of.addressAt(atPeak), v.Peak), html.Text(". "))), link(v.of.addressAt(""), "Only what is held now")),
	)
}
