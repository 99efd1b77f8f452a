package top

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/export"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// Text writes p for people without a terminal, with n stacks of each sort, width columns
// wide (0 for render.DefaultWidth).
func Text(w io.Writer, p *live.Status, n, width int, color bool) error {
	if width <= 0 {
		width = render.DefaultWidth
	}
	page := render.NewPage(w, width, color)
	m := &Model{status: p, shown: p.Select(&live.Scope{}, "", live.ByInuse, false), width: width, path: []level{{}}}
	page.Heading("GPU memory of %s, %s", cmp.Or(p.Meta.Target, "unknown target"), cmp.Or(p.Meta.Moment, "now, "+elapsed(p.Elapsed)+" after the trace began"))
	for _, l := range m.facts(p) {
		page.Line("%s", l)
	}
	wrong, notes := divided(p.Notes)
	for _, text := range wrong {
		page.Line("%s", text)
	}
	write := func(title string, t *table, n int) {
		if t.rows == 0 {
			return
		}
		page.Heading("%s", title)
		rows := t.rows
		if n >= 0 {
			rows = min(rows, n)
		}
		lines, _ := t.draw(numLists, m.width-2, rows, &cursor{}, false, -1, "")
		for _, l := range lines {
			page.Line("  %s", strings.TrimRight(ansi.Strip(l), " "))
		}
		if rows < t.rows {
			page.Line("  %d more", t.rows-rows)
		}
	}
	write("GPUs", m.gpuTable(), -1)
	write("Processes", m.processTable(), -1)
	for i := range p.Accounts {
		one := *m
		a := &p.Accounts[i]
		one.shown = &live.Status{Accounts: p.Accounts[i : i+1]} // the table of lines has no more
		write(fmt.Sprintf("%s (%d) on GPU %s", m.called(a.PID, a.Process), a.PID, a.GPU), one.lineTable(), -1)
	}
	write("Owners", m.ownerTable(), n)
	write("Stacks that hold most", m.stackTable(), n)
	m.shown.Sort(live.ByGrown, false)
	for i, x := range m.shown.Stacks {
		if x.Grown <= 0 {
			m.shown.Stacks = m.shown.Stacks[:i]
			break
		}
	}
	if p.Window > 0 {
		write("Stacks that grew most in "+short(p.Window), m.stackTable(), n)
	}
	if n != 0 { // which options take for the default
		export.InWindows(page, &snapshot.Snapshot{Meta: p.Meta, Windowed: p.Windowed}, export.Options{Top: n})
	}
	page.Losses(p.Lost, notes)
	return page.Flush("write the page")
}
