package server

import (
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/alert"
	"github.com/gpumemtrace/gpumemtrace/internal/agent/leaks"
	"github.com/gpumemtrace/gpumemtrace/internal/live"
)

// A chosen is the part of the trace, and the time up to now, that a request is about.
type chosen struct {
	filter
	period time.Duration
}

// about reports whether something is about what is chosen: an event of a process, 0 for
// none, on a GPU. Of a process without a GPU of the event, on are those that it is on.
func (c *chosen) about(pid int, gpu string, on map[int][]string) bool {
	switch {
	case c.pid != 0 && pid != c.pid:
		return false
	case c.gpu == "" || gpu == c.gpu:
		return true
	case gpu != "" || pid == 0:
		return false
	}
	return slices.Contains(on[pid], c.gpu)
}

// events are what happened in a period to what is chosen. Alerts and leaks of now come
// first, and of failures the latest.
type events struct {
	Begin      time.Time     `json:"begin"`
	End        time.Time     `json:"end"`
	Alerts     []alert.Alert `json:"alerts"`
	MoreAlerts int           `json:"more_alerts"` // beyond maxAlerts
	Failures   []incident    `json:"failures"`    // without their reports
	Leaks      []leaks.Leak  `json:"leaks"`
}

// maxAlerts bounds the alerts of events. Incidents and leaks are bounded where they are
// found.
const maxAlerts = 256

// events returns what happened in the chosen period, to what is chosen.
func (s *Server) events(p *live.Status, processes []live.Process, c *chosen) *events {
	now := p.Meta.Start.Add(p.Elapsed)
	out := &events{Begin: now.Add(-c.period), End: now, Alerts: []alert.Alert{}, Failures: []incident{}, Leaks: []leaks.Leak{}} // not nil, which JSON has as null
	on := map[int][]string{}
	for i := range processes {
		on[processes[i].PID] = processes[i].GPUs
	}
	for _, a := range s.opts.Alerts() {
		switch {
		case a.Resolved && a.Time.Before(out.Begin) || !c.about(a.Subject.PID, a.Subject.GPU, on):
		case len(out.Alerts) >= maxAlerts:
			out.MoreAlerts++
		default:
			out.Alerts = append(out.Alerts, a)
		}
	}
	for _, in := range s.incidents.list() {
		if !in.Time.Before(out.Begin) && c.about(in.PID, in.GPU, on) {
			out.Failures = append(out.Failures, in)
		}
	}
	for _, l := range s.opts.Leaks() {
		if !l.Last.Before(out.Begin) && c.about(l.PID, l.GPU, on) {
			out.Leaks = append(out.Leaks, l)
		}
	}
	return out
}
