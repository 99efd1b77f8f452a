package server

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/alert"
	"github.com/gpumemtrace/gpumemtrace/internal/agent/leaks"
	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/output/html"
	"github.com/gpumemtrace/gpumemtrace/internal/output/web"
)

// shownEvents bounds the alerts, the failures and the leaks that the page lists, each.
const shownEvents = 30

// events are what happened in a period.
type events struct {
	Period string
	Kinds  []eventKind // the kinds that happened
	None   string      // names the kinds that did not happen, "" if all did
}

// An eventKind has the events of one kind, the most important first.
type eventKind struct {
	Title string
	All   []occurrence
	More  int

	none string
}

// An occurrence is a line, with a stack if there is one.
type occurrence struct {
	Text, When string
	On         bool   // it is so now
	Report     int64  // the number of its report, 0 for none
	Key, Stack string // Stack names it in short
	Frames     []string
}

// add adds an event, if there is room.
func (k *eventKind) add(e occurrence) {
	if len(k.All) >= shownEvents {
		k.More++
		return
	}
	k.All = append(k.All, e)
}

// A happened is what happened in a period to what is chosen. Alerts and leaks of now come
// first, and of failures the latest.
type happened struct {
	Begin      time.Time     `json:"begin"`
	End        time.Time     `json:"end"`
	Alerts     []alert.Alert `json:"alerts"`
	MoreAlerts int           `json:"more_alerts"` // beyond maxAlerts
	Failures   []incident    `json:"failures"`    // without their reports
	Leaks      []leaks.Leak  `json:"leaks"`
}

// maxAlerts bounds the alerts of a happened. Incidents and leaks are bounded where they are
// found.
const maxAlerts = 256

// happened returns what happened in the chosen period, to what is chosen.
func (s *Server) happened(p *live.Status, processes []live.Process, c *chosen) *happened {
	now := p.Meta.Start.Add(p.Elapsed)
	out := &happened{Begin: now.Add(-c.period), End: now, Alerts: []alert.Alert{}, Failures: []incident{}, Leaks: []leaks.Leak{}} // not nil, which JSON has as null
	on := map[int][]string{}
	for i := range processes {
		on[processes[i].PID] = processes[i].GPUs
	}
	if s.opts.Alerts != nil {
		for _, a := range s.opts.Alerts() {
			switch {
			case a.Resolved && a.Time.Before(out.Begin) || !c.about(a.Subject.PID, a.Subject.GPU, on):
			case len(out.Alerts) >= maxAlerts:
				out.MoreAlerts++
			default:
				out.Alerts = append(out.Alerts, a)
			}
		}
	}
	for _, in := range s.incidents.list() {
		if !in.Time.Before(out.Begin) && c.about(in.PID, in.GPU, on) {
			out.Failures = append(out.Failures, in)
		}
	}
	if s.opts.Leaks != nil {
		for _, l := range s.opts.Leaks() {
			if !l.Last.Before(out.Begin) && c.about(l.PID, l.GPU, on) {
				out.Leaks = append(out.Leaks, l)
			}
		}
	}
	return out
}

// events returns what happened as the page shows it.
func (s *Server) events(p *live.Status, processes []live.Process, c *chosen) events {
	h := s.happened(p, processes, c)
	now := h.End
	alerts, failures, found := eventKind{Title: "Alerts", none: "no alerts"}, eventKind{Title: "Out of memory", none: "no failures for want of memory"}, eventKind{Title: "Leaks", none: "no leaks"}
	incidents := s.incidents.list()
	for i, a := range h.Alerts {
		e := occurrence{Text: web.Clean(strings.TrimPrefix(a.Text, "resolved: ")), On: !a.Resolved, Key: fmt.Sprint("alert ", a.Rule, a.Subject, i), Frames: a.Stack}
		if e.On {
			e.When = "since " + moment(a.Since, now) + ", for " + lasted(now.Sub(a.Since))
		} else {
			e.When = moment(a.Since, now) + " to " + moment(a.Time, now)
		}
		if len(a.Stack) > 0 {
			e.Stack = "stack"
		}
		if j := slices.IndexFunc(incidents, func(in incident) bool { return in.PID == a.Subject.PID && in.GPU == a.Subject.GPU }); a.Rule == "oom" && j >= 0 {
			e.Report = incidents[j].Number
		}
		alerts.add(e)
	}
	alerts.More += h.MoreAlerts
	for i := range h.Failures {
		in := &h.Failures[i]
		text := processName(in.Process, in.PID) + " asked for " + bytefmt.Format(in.Requested)
		if in.GPU != "" {
			text += " on GPU " + web.Clean(in.GPU)
		}
		came := ", not recovered"
		if in.Recovered {
			came = ", recovered"
		}
		failures.add(occurrence{Text: text, When: moment(in.Time, now) + came, Report: in.Number, Key: fmt.Sprint("oom ", in.Number), Stack: in.brief, Frames: in.Stack})
	}
	for i, l := range h.Leaks {
		text := bytefmt.Signed(l.Growth) + " in " + lasted(l.Over) + ": " + processName(l.Process, l.PID)
		if l.GPU != "" {
			text += " on GPU " + web.Clean(l.GPU)
		}
		if l.Line != "" {
			text += ", at " + web.Clean(l.Line)
		}
		when := moment(l.First, now) + " to " + moment(l.Last, now)
		switch {
		case l.Now && l.Starting:
			when = "found " + moment(l.First, now) + "; it still grows, but the process seems to be starting, so there is no alert"
		case l.Now:
			when = "found " + moment(l.First, now) + ", grows, holds " + bytefmt.Format(l.Held)
		}
		found.add(occurrence{Text: text, When: when, On: l.Now && !l.Starting, Key: fmt.Sprint("leak ", l.PID, l.Brief, i), Stack: l.Brief, Frames: l.Frames})
	}
	out := events{Period: periodText(c.period)}
	var none []string
	for _, k := range []eventKind{alerts, failures, found} {
		if len(k.All) > 0 {
			out.Kinds = append(out.Kinds, k)
		} else {
			none = append(none, k.none)
		}
	}
	if n := len(none) - 1; n > 0 {
		none = []string{strings.Join(none[:n], ", ") + " and " + none[n]}
	}
	if len(none) > 0 {
		out.None = strings.ToUpper(none[0][:1]) + none[0][1:] + "."
	}
	return out
}

// moment returns a time for people, with its day if that is not today.
func moment(t, now time.Time) string {
	t, now = t.UTC(), now.UTC()
	if t.YearDay() == now.YearDay() && t.Year() == now.Year() {
		return t.Format("15:04:05 UTC")
	}
	return t.Format("2006-01-02 15:04:05 UTC")
}

// lasted returns a duration to the second, without units that are zero.
func lasted(d time.Duration) string {
	text := d.Round(time.Second).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// eventsPart shows what happened.
func eventsPart(e *events) html.Node {
	kind := func(k eventKind) html.Node {
		return html.Group(html.H3(html.Text(k.Title)), html.Ul(html.Class("reports"), html.Each(k.All, eventLine)),
			html.If(k.More > 0, quietLine(fmt.Sprintf("And %d more.", k.More))))
	}
	return section("Events",
		html.H2(html.Text("In the last "+e.Period)),
		html.Each(e.Kinds, kind),
		html.If(e.None != "", quietLine(e.None)),
	)
}

func eventLine(e occurrence) html.Node {
	text := html.Text(e.Text)
	if e.Report != 0 {
		text = link(reportAddress(e.Report), e.Text)
	}
	if e.On {
		text = html.B(text)
	}
	return html.Li(text, html.Text(" "), quiet(e.When),
		html.If(len(e.Frames) > 0, html.Details(html.DataKey(e.Key), html.Summary(html.Text(e.Stack)), html.Ol(list(e.Frames)))),
	)
}
