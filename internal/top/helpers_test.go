package top

import (
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/gpumemtrace/gpumemtrace/internal/live"
)

const recordings = "../../test/recordings/"

// recorded is the view of a recording of a real program on NVIDIA H200s, at a moment.
func recorded(t *testing.T, name string, at time.Duration) *driven {
	t.Helper()
	r, err := live.OpenRecording(recordings + name + ".gmt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return drive(t, r, Options{Interval: time.Second, At: at})
}

// A driven view gets messages as from a terminal. What it asks for it gets at once, but
// for time, which goes on when it is told.
type driven struct {
	*testing.T
	*Model
}

func drive(t *testing.T, source live.Source, opts Options) *driven {
	d := &driven{T: t, Model: NewModel(source, opts)}
	d.do(d.request(true))
	return d
}

// do runs what the view asked for.
func (d *driven) do(cmd tea.Cmd) {
	for cmd != nil {
		msg := cmd()
		if _, quit := msg.(tea.QuitMsg); quit {
			return
		}
		_, cmd = d.Update(msg)
	}
}

func (d *driven) send(msg tea.Msg) {
	d.Helper()
	_, cmd := d.Update(msg)
	d.do(cmd)
}

// tock is an interval.
func (d *driven) interval() { d.do(d.tock()) }

var keys = map[string]tea.KeyPressMsg{
	"tab": {Code: tea.KeyTab}, "enter": {Code: tea.KeyEnter}, "esc": {Code: tea.KeyEscape}, "up": {Code: tea.KeyUp}, "down": {Code: tea.KeyDown},
	"left": {Code: tea.KeyLeft}, "right": {Code: tea.KeyRight}, "home": {Code: tea.KeyHome}, "end": {Code: tea.KeyEnd}, "space": {Code: tea.KeySpace, Text: " "},
	"pgdown": {Code: tea.KeyPgDown}, "pgup": {Code: tea.KeyPgUp}, "backspace": {Code: tea.KeyBackspace}, "shift+tab": {Code: tea.KeyTab, Mod: tea.ModShift},
	"ctrl+c": {Code: 'c', Mod: tea.ModCtrl},
}

// press presses keys, such as "tab enter /".
func (d *driven) press(names string) {
	d.Helper()
	for name := range strings.FieldsSeq(names) {
		k, ok := keys[name]
		if !ok {
			k = tea.KeyPressMsg{Code: []rune(name)[0], Text: name}
			if len(name) != 1 {
				d.Fatalf("no key %q", name)
			}
		}
		d.send(k)
	}
}

func (d *driven) resize(width, height int) { d.send(tea.WindowSizeMsg{Width: width, Height: height}) }

// shows is what is on the screen, without styles.
func (d *driven) shows() string {
	d.Helper()
	content := d.View().Content
	lines := strings.Split(content, "\n")
	if len(lines) > d.height {
		d.Fatalf("%d lines on a screen of %d", len(lines), d.height)
	}
	var b strings.Builder
	for _, l := range lines {
		if n := ansi.StringWidth(l); n > d.width {
			d.Fatalf("%d columns on a screen of %d: %q", n, d.width, l)
		}
		b.WriteString(strings.TrimRight(ansi.Strip(l), " ") + "\n")
	}
	return b.String()
}

func (d *driven) has(texts ...string) {
	d.Helper()
	screen := d.shows()
	for _, text := range texts {
		if !strings.Contains(screen, text) {
			d.Errorf("%q is not on the screen:\n%s", text, screen)
		}
	}
}

func (d *driven) hasNot(texts ...string) {
	d.Helper()
	screen := d.shows()
	for _, text := range texts {
		if strings.Contains(screen, text) {
			d.Errorf("%q is on the screen:\n%s", text, screen)
		}
	}
}
