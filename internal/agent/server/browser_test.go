//go:build !race

// The browser compiles for half a minute with the race detector, and tests the page.

package server

import (
	"os"
	"path/filepath"
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
	"github.com/gpumemtrace/gpumemtrace/internal/output/web"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/browsertest"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
)

// picture keeps a picture of the page where SCREENSHOTS says, to be looked at.
func picture(t *testing.T, b *browsertest.Browser, name string) {
	t.Helper()
	dir := os.Getenv("SCREENSHOTS")
	if dir == "" {
		return
	}
	png, err := chromedp.Run(b, chromedp.FullScreenshot(100))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644); err != nil {
		t.Fatal(err)
	}
}

// opened is the page of a server, once it has drawn all.
func (s *served) opened(t *testing.T, width, height int64) *browsertest.Browser {
	t.Helper()
	b := browsertest.Open(t, s.url, width, height)
	b.Until("document.documentElement.dataset.ready")
	b.Until("document.querySelector('#chart canvas')")
	return b
}

// The page shows what is held, by all that it can be told apart by, and renews itself.
func TestPage(t *testing.T) {
	names := []string{"out_of_memory"}
	if os.Getenv("SCREENSHOTS") != "" {
		names = append(names, "fsdp", "accelerate", "ipc")
	}
	for _, name := range names {
		var all []*state.Incident
		var notes []*state.Totals
		at := replay.End
		if name == "fsdp" {
			at = 9 * time.Second // its processes still live
		}
		end, err := replay.Play(recordings+name+".gmt", replay.Options{At: at, OutOfMemory: func(in *state.Incident) { all = append(all, in) },
			Before: func(s *state.State, r record.Record) {
				if _, is := r.(*record.Moment); is {
					notes = append(notes, s.View(state.Want{Totals: true}).Totals())
				}
			}})
		if err != nil {
			t.Fatal(err)
		}
		s := serve(t, Options{Source: &held{state: end}, Version: "test", Metrics: metrics, Recording: func() (string, time.Time) { return "/var/lib/gpumemtrace/" + name + ".gmt", time.Time{} }}, func(s *Server) {
			s.guard.host = "node7"
			for _, n := range notes {
				s.history.take(n)
			}
		})
		for _, in := range all {
			s.Incident(in)
		}
		b := s.opened(t, 1300, 900)
		picture(t, b, name+"-light")
		b.Wants("the peak", b.Text("now"), "Peak of all GPUs together in the last 30 min: ")
		b.Run(chromedp.Navigate(s.url + "/?at=peak"))
		b.Until("document.querySelector('#chart canvas')")
		b.Wants("the peak", b.Text("now"), ", the peak", "gpumemtrace report /var/lib/gpumemtrace/"+name+".gmt --by line --at 2026-")
		picture(t, b, name+"-peak-light")
		b.Dark(true)
		picture(t, b, name+"-dark")
		if len(all) > 0 {
			b.Wants("reports", b.Ask("document.querySelector('.reports').textContent"), "asked for")
		}
		b.Dark(false)
		b.Run(chromedp.EmulateViewport(360, 780))
		b.Until("document.querySelector('#chart canvas').clientWidth < 360")
		if b.Ask("document.documentElement.scrollWidth <= innerWidth") != "true" {
			t.Errorf("%s is %s wide on 360", name, b.Ask("document.documentElement.scrollWidth"))
		}
		picture(t, b, name+"-phone")
		if os.Getenv("SCREENSHOTS") != "" { // the picture of docs/agent.md: the end of the chart, and the largest stacks
			b.Run(chromedp.Navigate(s.url+"/"), chromedp.EmulateViewport(1000, 900))
			b.Until("document.querySelector('#chart canvas') && document.querySelector('#chart canvas').clientWidth > 900 && document.documentElement.dataset.ready")
			for _, id := range []string{"in", "in", "right", "right", "right", "right", "right", "right"} {
				b.Click(id)
			}
			b.Ask("document.querySelectorAll('section[aria-label^=Stacks] tbody tr:nth-child(n+7)').forEach((e) => e.remove())")
			picture(t, b, name+"-docs")
		}
		b.Quiet()
	}
}

// The page of a machine on which very much goes on is no slower, and as narrow.
func TestCrowdedPage(t *testing.T) {
	h := &held{state: state.New()}
	recordtest.Crowd(500, 4, 2, h.state.Apply)
	s := serve(t, Options{Source: h, Version: "test"})
	b := s.opened(t, 1300, 900)
	b.Wants("the page", b.Text("now"), "60.0 GiB of 80.0 GiB used (75.0%)", "rank0 (1000)", "And 300 more.", "not traced, or the driver's own", "free")
	picture(t, b, "crowd-light")
	b.Run(chromedp.EmulateViewport(360, 780))
	b.Until("document.querySelector('#chart canvas').clientWidth < 360")
	if b.Ask("document.documentElement.scrollWidth <= innerWidth") != "true" {
		t.Errorf("it is %s wide on 360", b.Ask("document.documentElement.scrollWidth"))
	}
	picture(t, b, "crowd-phone")
	b.Quiet()
}

// What a reader chooses applies to the whole page, whose stacks open, and which is as wide as
// a phone.
func TestPageChoices(t *testing.T) {
	s := eventful(t)
	b := s.opened(t, 1280, 900)
	picture(t, b, "events-light")
	b.Wants("events", b.Text("now"), "In the last 30 min", "gpu.used is 76.0 GiB", "eval (5000)")
	choose := func(id, value string) {
		b.Ask("(() => { const e = document.getElementById('" + id + "'); e.value = '" + value + "'; e.dispatchEvent(new Event('change')); })()")
	}
	choose("pid", "4711")
	b.Until("!document.getElementById('now').textContent.includes('gpu.used is')")
	b.Until("document.getElementById('flame').textContent.includes('f1') && !document.getElementById('flame').textContent.includes('f2')")
	b.Until("document.getElementById('legend').textContent.includes('python3 (4711)') && !document.getElementById('legend').textContent.includes('eval')")
	if got := b.Ask("document.getElementById('pid').value + ' ' + document.getElementById('owners').disabled"); got != "4711 true" {
		t.Errorf("the choice is %q", got)
	}
	b.Wants("the chart", b.Text("of"), "python3 (4711) on all GPUs together. The history does not divide a process by owner.")
	if got := b.Ask("location.search"); got != "?pid=4711" {
		t.Errorf("the address has %q", got)
	}
	choose("minutes", "120")
	b.Until("document.getElementById('now').textContent.includes('In the last 2 h')")
	choose("pid", "")
	b.Until("document.getElementById('now').textContent.includes('process.live is 1.0 GiB')")
	b.Ask("document.querySelectorAll('.reports details').forEach((d) => { d.open = true; })")
	b.Wants("a stack", b.Ask("document.querySelector('.reports details ol').innerText"), "train_step /home/me/train.py:88")
	b.Dark(true)
	picture(t, b, "events-dark")
	b.Run(chromedp.EmulateViewport(360, 780))
	b.Until("document.querySelector('#chart canvas').clientWidth < 360")
	if b.Ask("document.documentElement.scrollWidth <= innerWidth") != "true" {
		t.Errorf("it is %s wide on 360", b.Ask("document.documentElement.scrollWidth"))
	}
	picture(t, b, "events-phone-dark")
	b.Dark(false)
	picture(t, b, "events-phone")
	b.Quiet()
}

// A page that stays open shows what comes, keeps what was opened, and says when the agent
// does not answer.
func TestPageRenews(t *testing.T) {
	h := begun()
	h.alloc(2*time.Second, 1, 1<<20, 300<<20)
	h.at(3 * time.Second)
	s := serve(t, Options{Source: h})
	b := s.opened(t, 1000, 800)
	b.Wants("the page", b.Text("now"), "300 MiB", "python3", "4711")
	b.Run(chromedp.Click(chromedp.CSS("#now details summary")))
	b.Until("document.querySelector('#now details').open")
	h.alloc(4*time.Second, 1, 2<<30, 700<<20)
	h.at(5 * time.Second)
	b.Until("document.getElementById('now').textContent.includes('1000 MiB')")
	if b.Ask("document.querySelector('#now details').open") != "true" {
		t.Error("what was opened is closed")
	}
	b.Until("document.getElementById('legend').textContent.includes('python3 (4711) ≤ 0.98 GiB')")
	b.TabTo("chart")
	b.Keys(kb.End)
	b.Wants("the last note", b.Text("here"), "1,048,576,000 bytes")
	b.Keys(kb.Enter)
	b.Until("document.getElementById('now').textContent.includes('The history contains no stacks.')")
	b.Wants("the chosen moment", b.Ask("location.search + document.getElementById('now').textContent"), "?at=2023-11-14T", ", the peak", "traced processes held 1000 MiB")
	b.Click("again")
	b.Until("document.querySelectorAll('#flame .f').length >= 2")
	b.Wants("flame", b.Text("flame"), "f1", "cuMemAlloc_v2")
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
	s := serve(t, Options{Source: h, Version: names[2]})
	for _, name := range names {
		s.keep(failureOf(name, name))
	}
	b := s.opened(t, 900, 900)
	b.Ask("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
	b.Run(chromedp.MouseEvent(chromedp.MouseMoved, 500, 600))
	b.TabTo("chart")
	b.Keys(kb.End)
	const made = "typeof hacked + document.querySelectorAll('img, .hacked, iframe, #now script, a:not([href^=\"/\"])').length"
	if got := b.Ask(made); got != "undefined0" {
		t.Error(got)
	}
	for _, part := range []string{"header", ".reports", ".parts", ".parts + h3 + svg", "section[aria-label=Processes]", "section[aria-label^=Stacks]", "#notes"} {
		got := b.Ask("[...document.querySelectorAll('#now " + part + "')].map((e) => e.textContent).join()")
		want := names
		switch part {
		case "header":
			want = names[:1] // the target
		case ".parts", ".parts + h3 + svg":
			want = names[:0] // some are among the others
		}
		if len(got) < 100 {
			t.Errorf("%s: %q", part, got)
		}
		for _, name := range want {
			b.Wants(part, got, web.Clean(name))
		}
	}
	for _, name := range names {
		b.Wants("#pid", b.Text("pid"), web.Clean(name))
	}
	if b.Ask("document.documentElement.scrollWidth <= innerWidth") != "true" {
		t.Errorf("it is %s wide on 900", b.Ask("document.documentElement.scrollWidth"))
	}
	if b.Ask("Math.max(...[...document.querySelectorAll('#now *')].filter((e) => !e.children.length).map((e) => e.textContent.length)) < 9999") != "true" {
		t.Error("a name is not cut")
	}
	picture(t, b, "hostile")
	b.Quiet()
	report := browsertest.Open(t, s.url+"/oom/2", 900, 900)
	if got := report.Ask("typeof hacked + document.querySelectorAll('img, .hacked, script').length"); got != "undefined0" {
		t.Error(got)
	}
	report.Wants("the report", report.Ask("document.body.textContent"), names[1])
}

// A browser that has a password shows the page, and renews it.
func TestPageWithPassword(t *testing.T) {
	h := begun()
	s := serve(t, Options{Source: h, WebConfig: writeWeb(t)})
	s.url = strings.Replace(s.url, "http://", "http://ada:"+password+"@", 1)
	b := browsertest.Open(t, s.url, 900, 700)
	b.Until("document.documentElement.dataset.ready")
	h.alloc(2*time.Second, 1, 1<<20, 300<<20)
	h.at(3 * time.Second)
	b.Until("document.getElementById('now').textContent.includes('300 MiB')")
	if b.Ask("document.getElementById('failed').hidden") != "true" {
		t.Error(b.Text("failed"))
	}
}

// Processes are grouped as the reader asks, and stay so when the page renews itself.
func TestPageByUser(t *testing.T) {
	h := begun()
	for i, user := range []string{"ada", "bob", "ada"} {
		p := event.Process{PID: uint32(5000 + i), Start: event.StartUnit}
		h.apply(&record.Process{Process: p, Target: true, Name: "python3", FromStart: true, Who: snapshot.Who{User: user, Command: "python3 serve.py --port 800" + user}})
		h.allocBy(p, time.Duration(i+2)*time.Second, uint64(i+1), uint64(i+1)<<30, uint64(i+1)*100<<20, "/serve.py", "serve")
	}
	h.at(time.Minute)
	s := serve(t, Options{Source: h})
	b := s.opened(t, 1280, 900)
	b.Until("document.getElementById('legend').textContent.includes('python3 (5002)')")
	choose := func(by string) {
		b.Ask("(() => { const e = document.getElementById('by'); e.value = '" + by + "'; e.dispatchEvent(new Event('change')); })()")
	}
	if got := b.Ask("[...document.getElementById('by').options].map((o) => o.value).join()"); got != ",user,command" {
		t.Errorf("processes may be grouped by %q", got)
	}
	choose("user")
	sums := "[...document.querySelectorAll('#now .sum')].map((e) => e.textContent).join('\\n')"
	b.Until("document.querySelectorAll('#now .sum').length == 3")
	b.Wants("the sums", b.Ask(sums), "ada 2 processes", "400 MiB", "bob 1 process", "no user known")
	h.allocBy(event.Process{PID: 5001, Start: event.StartUnit}, 61*time.Second, 9, 9<<30, 600<<20, "/serve.py", "serve")
	h.at(62 * time.Second)
	b.Until(sums + ".includes('800 MiB')")
	if got := b.Ask("document.querySelector('#now .sum').textContent"); !strings.Contains(got, "bob") {
		t.Errorf("%q is first", got)
	}
	b.Wants("commands", b.Text("now"), "serve.py --port 800bob")
	b.Until("document.getElementById('legend').textContent.includes('bob ≤ 800 MiB')")
	b.Wants("the bar", b.Ask("document.querySelector('#now article').textContent"), "by user", "bob 800 MiB", "ada 400 MiB")
	b.Wants("the chart", b.Text("grouping")+b.Text("legend"), "By user", "ada ≤ 400 MiB")
	b.Click("owners")
	b.Until("document.getElementById('legend').textContent.includes('application ≤ 1.17 GiB')")
	b.Click("grouping")
	b.Until("document.getElementById('legend').textContent.includes('bob')")
	picture(t, b, "by_user")
	b.Quiet()
}
