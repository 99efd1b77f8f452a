package top

import (
	"bytes"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/livetest"
)

// Whatever a process calls itself, its libraries and functions, is text: no line is
// wider than the screen, by either way in which terminals count, there is no line more,
// and no sequence but styles.
func TestHostileNames(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine has nothing for the race detector")
	}
	for _, name := range livetest.HostileNames {
		source := &made{}
		for i := range 3 {
			l := sized(i, name, 100*mib, 200*mib, 0, 5)
			l.Snapshot.Samples[1].Kind, l.Snapshot.Samples[1].GPU, l.Snapshot.Samples[1].Category = name, name, name
			l.Snapshot.GPUs[0].GPU = name
			l.Snapshot.Meta.Driver = name
			source.looks = append(source.looks, l)
		}
		d := drive(t, source, Options{Interval: time.Second})
		for _, keys := range []string{"", "shift+tab enter", "enter", "tab tab enter", "esc esc esc tab enter", "n", "esc / \x1b enter", "?"} {
			d.press(keys)
			d.interval()
			for _, w := range []int{1, 19, 20, 33, 80, 151, 200} {
				for _, h := range []int{1, 5, 12, 24, 60} {
					d.resize(w, h)
					lines := strings.Split(d.View().Content, "\n")
					if len(lines) > h {
						t.Fatalf("%.20q: %d lines on a screen of %d", name, len(lines), h)
					}
					for _, l := range lines {
						text := ansi.Strip(l)
						if n, m := ansi.StringWidth(text), ansi.StringWidthWc(text); n > w || m > w {
							t.Fatalf("%.20q: %d or %d columns on a screen of %d: %q", name, n, m, w, l)
						}
						if strings.ContainsFunc(text, render.Unsafe) || !utf8.ValidString(l) {
							t.Fatalf("%.20q: %q", name, l)
						}
					}
				}
			}
		}
		p := d.status
		var page, document bytes.Buffer
		if err := Text(&page, p, -1, 80, true); err != nil {
			t.Fatal(err)
		}
		for l := range strings.Lines(page.String()) {
			if text := strings.TrimSuffix(ansi.Strip(l), "\n"); strings.ContainsFunc(text, render.Unsafe) {
				t.Fatalf("%.20q: the page has %q", name, l)
			}
		}
		if err := p.Document(-1).Write(&document); err != nil {
			t.Fatal(err)
		}
		back := livetest.Read[live.Now](t, document.String())
		if got := back.Processes[0].Name; utf8.ValidString(name) && got != name {
			t.Errorf("the document calls it %.50q, want %.50q", got, name)
		}
		if bytes.ContainsFunc(bytes.TrimSuffix(document.Bytes(), []byte("\n")), render.Unsafe) {
			t.Errorf("%.20q: the document has what a terminal could act upon", name)
		}
	}
}

// What is typed is text too, and no message breaks a view.
func FuzzKeys(f *testing.F) {
	f.Add("jjkk\tgGsS/abc\x1b?n rq", 80, 24)
	f.Fuzz(func(t *testing.T, text string, w, h int) {
		d := drive(t, many(), Options{Interval: time.Second})
		d.resize(w%300, h%100)
		for i, r := range text {
			if i > 100 {
				break
			}
			d.send(tea.KeyPressMsg{Code: r, Text: string(r)})
			d.send(tea.MouseClickMsg{X: int(r) % 100, Y: int(r) % 37, Button: tea.MouseLeft})
			d.interval()
			d.View()
		}
	})
}
