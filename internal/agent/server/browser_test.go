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
		end, err := replay.Play(recordings+name+".gmt", replay.Options{At: replay.End, OutOfMemory: func(in *state.Incident) { all = append(all, in) }})
		if err != nil {
			t.Fatal(err)
		}
		s := serve(t, Options{Source: &held{state: end}, Version: "test", Metrics: metrics})
		for _, in := range all {
			s.Incident(in)
		}
		b := s.opened(t, 1300, 900)
		picture(t, b, name+"-light")
		b.Dark(true)
		picture(t, b, name+"-dark")
		if len(all) > 0 {
			b.Wants("reports", b.Ask("document.querySelector('.reports').textContent"), "asked for")
		}
		b.Dark(false)
		b.Run(chromedp.EmulateViewport(390, 844))
		b.Until("document.querySelector('#chart canvas').clientWidth < 390")
		if b.Ask("document.documentElement.scrollWidth <= innerWidth") != "true" {
			t.Errorf("%s is %s wide on 390", name, b.Ask("document.documentElement.scrollWidth"))
		}
		picture(t, b, name+"-phone")
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
	b.Run(chromedp.EmulateViewport(390, 844))
	b.Until("document.querySelector('#chart canvas').clientWidth < 390")
	if b.Ask("document.documentElement.scrollWidth <= innerWidth") != "true" {
		t.Errorf("it is %s wide on 390", b.Ask("document.documentElement.scrollWidth"))
	}
	picture(t, b, "crowd-phone")
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
	b.Until("document.getElementById('legend').textContent.includes('application ≤ 0.98 GiB')")
	b.TabTo("chart")
	b.Keys(kb.End)
	b.Wants("the last note", b.Text("here"), "1,048,576,000 bytes")
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
		h.apply(&record.Process{Process: p, Target: true, Name: name, FromStart: true})
		h.allocBy(p, time.Duration(i+2)*time.Second, uint64(i+1), uint64(i+1)<<30, 100<<20, "/x/site-packages/"+name+"/"+name+".py", name)
		h.note(name)
	}
	h.at(time.Minute)
	s := serve(t, Options{Source: h, Version: names[2], Workload: func(pid int) string { return names[pid%len(names)] }})
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

// Who does not have the token gets a form for it, and with it a cookie that is not it, and
// that a browser keeps.
func TestLogin(t *testing.T) {
	cert, key := certificateFiles(t, t.TempDir(), "localhost")
	s := serve(t, Options{Source: begun(), TokenFile: file(t, "token", token), Certificate: cert, Key: key})
	b := browsertest.Open(t, strings.Replace(s.url, "http:", "https:", 1), 900, 700)
	b.Wants("login", b.Ask("document.body.textContent"), "--token-file")
	picture(t, b, "login")
	b.Run(chromedp.SendKeys(chromedp.CSS("#token"), "not the token at all"), chromedp.Click(chromedp.CSS("button")))
	b.Until("document.querySelector('.wrong')")
	b.Run(chromedp.SendKeys(chromedp.CSS("#token"), token), chromedp.Click(chromedp.CSS("button")))
	b.Until("document.getElementById('now')")
	b.Wants("cookies that a script sees", "["+b.Ask("document.cookie")+"]", "[]")
	b.Until("document.documentElement.dataset.ready")
	b.Run(chromedp.Click(chromedp.CSS("footer button")))
	b.Until("document.getElementById('token')")
}
