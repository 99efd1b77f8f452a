package server

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/output/html"
)

// A chosen is the part of the trace that a reader chose on the page.
type chosen struct {
	filter
	period time.Duration // of what happened, up to now
	by     string        // what processes are grouped by: see groupings
	at     string        // a moment of the period, of which the page tells too, "" for none
}

// periods are those that the page offers. The first is chosen at first.
var periods = []time.Duration{30 * time.Minute, 2 * time.Hour, 12 * time.Hour, 48 * time.Hour}

func chosenOf(r *http.Request) (*chosen, error) {
	p, err := paramsOf(r, "gpu", "pid", "minutes", "by", "at")
	if err != nil {
		return nil, err
	}
	return p.chosen()
}

// chosen returns what the parameters choose.
func (p params) chosen() (*chosen, error) {
	f, err := p.filter()
	if err != nil {
		return nil, err
	}
	by, err := p.grouping()
	if err != nil {
		return nil, err
	}
	n, err := p.number("minutes", 1, int(periods[len(periods)-1]/time.Minute), int(periods[0]/time.Minute))
	if err != nil {
		return nil, err
	}
	c := &chosen{f, time.Duration(n) * time.Minute, by, p["at"]}
	if _, err := c.moment(replay.Span{}); err != nil {
		return nil, badRequest("at must be a moment of the period: peak, 5m (after its beginning), -30s (before its end), 23:14 or 2006-01-02T15:04:05Z (in UTC)")
	}
	return c, nil
}

// address returns the address of the page that shows what is chosen.
func (c *chosen) address() html.Address {
	q := url.Values{}
	if c.gpu != "" {
		q.Set("gpu", c.gpu)
	}
	if c.pid != 0 {
		q.Set("pid", strconv.Itoa(c.pid))
	}
	if c.period != periods[0] {
		q.Set("minutes", strconv.Itoa(int(c.period/time.Minute)))
	}
	if c.by != "" {
		q.Set("by", c.by)
	}
	if c.at != "" {
		q.Set("at", c.at)
	}
	if len(q) == 0 {
		return "/"
	}
	return html.Address("/?" + q.Encode())
}

// addressAt returns the address of the page that shows another moment, "" for none.
func (c chosen) addressAt(at string) html.Address {
	c.at = at
	return c.address()
}

// addressOf returns the address of the page that shows a GPU alone, "" where that is chosen.
func (c chosen) addressOf(gpu string) html.Address {
	if c.gpu == gpu || !gpuLabel.MatchString(gpu) {
		return ""
	}
	c.gpu = gpu
	return c.address()
}

// moment returns the chosen moment of a period, or of no choice its peak.
func (c *chosen) moment(x replay.Span) (time.Time, error) {
	in, err := replay.ParseMoment(cmp.Or(c.at, atPeak), time.UTC)
	if err != nil {
		return time.Time{}, err
	}
	return x.Start.Add(in(x)), nil
}

// atPeak chooses the peak.
const atPeak = "peak"

// who names what is chosen, in words.
func (c *chosen) who() string {
	switch {
	case c.pid != 0 && c.gpu != "":
		return fmt.Sprintf("process %d on GPU %s", c.pid, c.gpu)
	case c.pid != 0:
		return fmt.Sprintf("process %d", c.pid)
	case c.gpu != "":
		return "GPU " + c.gpu
	}
	return "all GPUs together"
}

// scope returns the filter as a live.Scope.
func (c *chosen) scope() *live.Scope {
	var out live.Scope
	if c.gpu != "" {
		out.GPU = &c.gpu
	}
	if c.pid != 0 {
		out.PID = &c.pid
	}
	return &out
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

// choosersPart has what a reader chooses. It applies to the whole page.
func choosersPart(c *choice) html.Node {
	one := func(d time.Duration) html.Node {
		return html.Option(html.Value(strconv.Itoa(int(d/time.Minute))), html.Text("last "+periodText(d)))
	}
	return html.Div(html.ID("choosers"), html.Class("bar"), html.Role("group"), html.AriaLabel("What is shown"),
		html.Label(html.Text("GPU "), html.Select(html.ID("gpu"), options("all", c.GPUs))),
		html.Label(html.Text("Process "), html.Select(html.ID("pid"), options("all", c.Processes))),
		html.Label(html.Text("By "), html.Select(html.ID("by"), options("process", c.Groupings))),
		html.Label(html.Text("Period "), html.Select(html.ID("minutes"), html.Each(periods, one))),
	)
}

// choicesPart has what can be chosen now. The script puts it into the choosers.
func choicesPart(c *choice) html.Node {
	return html.Group(
		html.Select(html.ID("gpus"), html.Hidden, options("all", c.GPUs)),
		html.Select(html.ID("pids"), html.Hidden, options("all", c.Processes)),
		html.Select(html.ID("bys"), html.Hidden, options("process", c.Groupings)),
	)
}

// options are several, after the one of no choice.
func options(none string, of []option) html.Node {
	one := func(o option) html.Node { return html.Option(html.Value(o.Value), html.Text(o.Text)) }
	return html.Group(one(option{"", none}), html.Each(of, one))
}

// periodText names a period.
func periodText(d time.Duration) string {
	if d < time.Hour {
		return fmt.Sprintf("%d min", int(d.Minutes()))
	}
	return fmt.Sprintf("%d h", int(d.Hours()))
}
