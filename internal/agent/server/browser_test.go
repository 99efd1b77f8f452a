//go:build !race

// The browser compiles for half a minute with the race detector, and tests the page.

package server

import (
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/browsertest"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
)

func init() { runTests = browsertest.Main }

// opened is the page of a server, once it has drawn all.
func (s *served) opened(t *testing.T, width, height int64) *browsertest.Browser {
	t.Helper()
	b := browsertest.Open(t, s.url, width, height)
	b.Until("document.documentElement.dataset.ready")
	b.Until("document.querySelector('#chart canvas')")
	return b
}

// The page shows what real programs hold: by stack now, by process before, with failures and
// their reports.
func TestPage(t *testing.T) {
	var all []*state.Incident
	var notes []*state.Totals
	end, err := replay.Play(recordings+"out_of_memory.gmt", replay.Options{At: replay.End, OutOfMemory: func(in *state.Incident) { all = append(all, in) },
		Before: func(s *state.State, r record.Record) {
			if _, is := r.(*record.Moment); is {
				notes = append(notes, s.View(state.Want{Totals: true}).Totals())
			}
		}})
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, Options{Source: &held{state: end}, Metrics: metrics}, func(s *Server) {
		s.guard.host = "node7"
		for _, n := range notes {
			s.history.take(n)
		}
	})
	for _, in := range all {
		s.Incident(in)
	}
	b := s.opened(t, 1300, 900)
	b.Picture("page")
	b.Wants("the page", b.Ask("document.title")+b.Text("happened"), "node7", "asked for", "not recovered")
	s.fitsPhone(t, b)
	b.Picture("page-phone")
	b.Run(chromedp.Navigate(s.url + b.Ask("document.querySelector('#happened a').getAttribute('href')")))
	b.Wants("the report", b.Ask("document.body.textContent"), "Out of GPU memory")
	b.Quiet()
}

// The page of a machine on which very much goes on is no slower, and as narrow.
func TestCrowdedPage(t *testing.T) {
	h := &held{state: state.New()}
	recordtest.Crowd(500, 4, 2, h.state.Apply)
	s := serve(t, Options{Source: h})
	b := s.opened(t, 1300, 900)
	b.Wants("the page", b.Ask("document.body.innerText"), "60.0 GiB of 80.0 GiB used (75.0%)", "rank0", "And 300 more.")
	b.Picture("crowd")
	s.fitsPhone(t, b)
	b.Quiet()
}

// A page that stays open shows what comes, keeps what was opened and chosen, and says when the
// agent does not answer. The peak is never below what is held now.
func TestPageRenews(t *testing.T) {
	h := begun()
	h.alloc(2*time.Second, 1, 1<<20, 300<<20)
	h.at(3 * time.Second)
	s := serve(t, Options{Source: h})
	b := s.opened(t, 1000, 800)
	b.Wants("the page", b.Text("processes"), "300 MiB", "python3", "4711")
	b.Wants("stacks", b.Text("table"), "f1")
	h.alloc(4*time.Second, 1, 2<<30, 700<<20)
	h.at(5 * time.Second)
	b.Until("document.getElementById('processes').textContent.includes('1000 MiB')")
	b.Until("document.getElementById('moment').textContent.includes('1000 MiB')")
	b.Wants("the legend", b.Text("legend"), "python3 (4711) ≤ 1000 MiB")
	b.Wants("the peak", b.Text("places"), "peak 1000 MiB")
	b.Wants("flame", b.Text("flame"), "f1", "cuMemAlloc_v2")
	b.Run(chromedp.Click(chromedp.CSS("#table details summary")))
	h.alloc(6*time.Second, 2, 4<<30, 100<<20)
	h.at(7 * time.Second)
	b.Until("document.getElementById('processes').textContent.includes('1.07 GiB')")
	if b.Ask("document.querySelector('#table details').open") != "true" {
		t.Error("what was opened is closed")
	}
	b.TabTo("chart")
	b.Keys(kb.Home)
	b.Keys(kb.Enter)
	b.Wants("the chosen moment", b.Text("moment"), "Held at", "300 MiB")
	h.free(8*time.Second, 1<<20)
	h.at(9 * time.Second)
	b.Until("document.getElementById('processes').textContent.includes('800 MiB')")
	b.Wants("the chosen moment", b.Text("moment"), "Held at", "300 MiB")
	b.Wants("the peak of the process", b.Text("processes"), "1.07 GiB")
	b.Quiet()
	s.stop()
	b.Until("!document.getElementById('failed').hidden")
	b.Wants("failed", b.Text("failed"), "does not answer")
}

// Names are a traced program's choice. They are text, wherever they are shown, and cut.
func TestHostileNames(t *testing.T) {
	names := hostileNames
	h := begunAs(names[1], names[0])
	for i, name := range names {
		p := event.Process{PID: uint32(5000 + i), Start: event.StartUnit}
		who := snapshot.Who{User: name, Command: name + " " + names[0], Pod: name, Namespace: names[0]}
		h.apply(&record.Process{Process: p, Target: true, Name: name, FromStart: true, Who: who})
		h.allocBy(p, time.Duration(i+2)*time.Second, uint64(i+1), uint64(i+1)<<30, 100<<20, "/x/site-packages/"+name+"/"+name+".py", name)
		h.note(name)
	}
	h.at(time.Minute)
	s := serve(t, Options{Source: h})
	for _, name := range names {
		s.keep(failureOf(name, name))
	}
	b := s.opened(t, 900, 900)
	b.Ask("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
	for _, by := range []string{"owner", "user", "command", "pod", "stack", "process"} {
		b.Ask("(() => { const e = document.getElementById('group'); e.value = '" + by + "'; e.dispatchEvent(new Event('change')); })()")
		b.Run(chromedp.MouseEvent(chromedp.MouseMoved, 500, 600))
	}
	b.TabTo("chart")
	b.Keys(kb.End)
	const made = "typeof hacked + document.querySelectorAll('img, .hacked, iframe, main script, a:not([href^=\"/\"])').length"
	if got := b.Ask(made); got != "undefined0" {
		t.Error(got)
	}
	for _, part := range []string{"processes", "happened", "table", "notes", "process"} {
		got := b.Text(part)
		for _, name := range names[:5] {
			b.Wants(part, got, name)
		}
	}
	if b.Ask("document.documentElement.scrollWidth <= innerWidth") != "true" {
		t.Errorf("it is %s wide on 900", b.Ask("document.documentElement.scrollWidth"))
	}
	b.Picture("hostile")
	b.Quiet()
	report := browsertest.Open(t, s.url+"/oom/2", 900, 900)
	if got := report.Ask("typeof hacked + document.querySelectorAll('img, .hacked, script').length + document.styleSheets.length"); got != "undefined01" {
		t.Error(got)
	}
	report.Wants("the report", report.Ask("document.body.textContent"), names[1])
}

// A browser that has a password shows the page, and renews it: what comes first, too.
func TestPageWithPassword(t *testing.T) {
	h := begun()
	s := serve(t, Options{Source: h, WebConfig: writeWeb(t)})
	s.url = strings.Replace(s.url, "http://", "http://ada:"+password+"@", 1)
	b := browsertest.Open(t, s.url, 900, 700)
	b.Until("document.documentElement.dataset.ready")
	b.Until("performance.getEntriesByType('resource').filter((e) => e.name.includes('/api/v1/top')).length >= 4")
	if b.Ask("document.getElementById('failed').hidden") != "true" {
		t.Fatal(b.Text("failed"))
	}
	h.alloc(2*time.Second, 1, 1<<20, 300<<20)
	h.at(3 * time.Second)
	b.Until("document.getElementById('processes').textContent.includes('300 MiB')")
	b.Until("document.getElementById('moment').textContent.includes('300 MiB')")
	if b.Ask("document.getElementById('failed').hidden") != "true" {
		t.Error(b.Text("failed"))
	}
}
