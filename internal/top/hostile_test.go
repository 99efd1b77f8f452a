package top

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

var hostile = []string{
	"\x1b[2J\x1b[31mred\x1b]0;title\a", "a\nb\r\tc\x00\x7f", "\x9b31m\u009b31m", "bad\xff\xfe utf8",
	strings.Repeat("x", 10_000), strings.Repeat("界", 10_000), "e" + strings.Repeat("\u0301", 10_000),
	"👨‍👩‍👧‍👦 family 🇩🇪🇫🇷 👍🏽 ❤️ ☝🏿", "각\u1100\u1161\u11a8\ud7b0", "नमस्ते क्ष\u0e33\u0e01\u0e38", "rtl\u202e\u2067gnp.exe", "שלום عالم",
	"का" + strings.Repeat("\u0903", 500), "\U0001100d\u0d4e\u0d4e\u0915", "ᄀ" + strings.Repeat("ᅡ", 300), "\u200b\u2060\ufeff\u00ad", "<b>&amp;'\"`$(x)", "\u115f\u1160\u3164\uffa0", "", " ", "…", "▕█▏",
}

// Whatever a process calls itself, its libraries and functions, is text: no line is
// wider than the screen, by either way in which terminals count, there is no line more,
// and no sequence but styles.
func TestHostileNames(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine has nothing for the race detector")
	}
	for _, name := range hostile {
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
		p := d.picture
		var page, document bytes.Buffer
		if err := Text(&page, p, -1, 80, true); err != nil {
			t.Fatal(err)
		}
		for l := range strings.Lines(page.String()) {
			if text := strings.TrimSuffix(ansi.Strip(l), "\n"); strings.ContainsFunc(text, render.Unsafe) {
				t.Fatalf("%.20q: the page has %q", name, l)
			}
		}
		if err := JSON(&document, p, -1); err != nil {
			t.Fatal(err)
		}
		var back Document
		if err := json.Unmarshal(document.Bytes(), &back); err != nil {
			t.Fatal(err)
		}
		if got := back.Processes[0].Name; utf8.ValidString(name) && got != name {
			t.Errorf("the document calls it %.50q, want %.50q", got, name)
		}
		if bytes.ContainsFunc(bytes.TrimSuffix(document.Bytes(), []byte("\n")), render.Unsafe) {
			t.Errorf("%.20q: the document has what a terminal could act upon", name)
		}
	}
}

func FuzzPlain(f *testing.F) {
	for _, s := range hostile {
		f.Add(s, 10)
	}
	f.Fuzz(func(t *testing.T, s string, n int) {
		got := plain(s)
		if n < 0 || n > 10_000 {
			n = 80
		}
		for _, x := range []string{fit(got, n, false), fit(got, n, true)} {
			if a, b, c := ansi.StringWidth(x), ansi.StringWidthWc(x), width(x); a != n || b != n || c != n {
				t.Errorf("%q in %d columns takes %d, %d or %d", x, n, a, b, c)
			}
		}
		if strings.ContainsFunc(got, render.Unsafe) || plain(got) != got && len(got) < maxName {
			t.Errorf("plain(%q) = %q, then %q", s, got, plain(got))
		}
	})
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
