package doctor

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// Status says how a check ended.
type Status string

const (
	OK   Status = "ok"
	Warn Status = "warn" // tracing works, less well or less fully
	Fail Status = "FAIL" // tracing does not work
)

// A Check is one finding.
type Check struct {
	Group  string `json:"group"`
	Check  string `json:"check"` // unique in its group
	Status Status `json:"status"`
	Detail string `json:"detail"`
	Fix    string `json:"fix"` // what to do, "" for OK
}

// A Report is all findings, group by group. Its text has nothing that a
// terminal would obey.
type Report []Check

// Failed reports whether any check failed.
func (r Report) Failed() bool { return r.count(Fail) > 0 }

func (r Report) count(s Status) (n int) {
	for _, c := range r {
		if c.Status == s {
			n++
		}
	}
	return n
}

// WriteJSON writes the report as an array of objects.
func (r Report) WriteJSON(w io.Writer) error {
	return render.WriteJSON(w, append([]Check{}, r...))
}

// WriteText writes the report for people, width columns wide (0 for the
// default), with ANSI colours when color is set.
func (r Report) WriteText(w io.Writer, width int, color bool) error {
	if width <= 0 {
		width = render.DefaultWidth
	}
	names := 0
	for _, c := range r {
		names = max(names, utf8.RuneCountInString(c.Check))
	}
	page := render.NewPage(w, width, color)
	group := ""
	for _, c := range r {
		if c.Group != group {
			group = c.Group
			page.Heading("%s", group)
		}
		line := page.Line
		if c.Status != OK {
			line = page.Warn
		}
		lead := fmt.Sprintf("  %-4s  %-*s  ", c.Status, names, c.Check)
		indent := render.Width(lead)
		wide := max(width, 2*indent) // nothing is cut off: a path or a symbol must be readable whole
		text := render.Wrap(lead+c.Detail, wide, indent-2)
		if c.Fix != "" {
			text = append(text, render.Wrap(strings.Repeat(" ", indent)+"fix: "+c.Fix, wide, 0)...)
		}
		for _, t := range text {
			line("%s", t)
		}
	}
	page.Heading("%d ok, %d warn, %d FAIL", r.count(OK), r.count(Warn), r.count(Fail))
	return page.Flush("write report")
}

// A group collects the checks of one group.
type group struct {
	name   string
	checks []Check
}

func (g *group) add(check string, s Status, detail, fix string) {
	g.checks = append(g.checks, Check{g.name, render.Clean(check), s, render.Clean(detail), render.Clean(fix)})
}

func (g *group) ok(check, format string, args ...any) {
	g.add(check, OK, fmt.Sprintf(format, args...), "")
}

func (g *group) warn(check, fix, format string, args ...any) {
	g.add(check, Warn, fmt.Sprintf(format, args...), fix)
}

func (g *group) fail(check, fix, format string, args ...any) {
	g.add(check, Fail, fmt.Sprintf(format, args...), fix)
}
