package top

import (
	"errors"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/livetest"
)

// many are snapshots of a process with some stacks, of which the third grows.
func many() *made {
	m := &made{}
	for i := range 20 {
		m.looks = append(m.looks, sized(i, "prog", 100*mib, 90*mib, int64(i)*10*mib, 70*mib, 60*mib, 0))
	}
	return m
}

// A GPU, of that a process, of that a stack, and its live allocations; and back.
func TestOpen(t *testing.T) {
	source := many()
	source.looks[0].Snapshot.Live = []snapshot.Allocation{{Address: 0x1000, Size: 100 * mib, Time: livetest.Began}}
	d := drive(t, source, Options{Interval: time.Second})
	d.resize(120, 40)
	d.has("prog_0", "lost: 3 events_ring_full", "25.0%", "1 of 2", "unexplained 5.00 MiB")
	d.press("shift+tab enter")
	d.has("› GPU 0")
	d.press("enter")
	d.has("› GPU 0 › process prog (7)", "[allocated before attach]")
	source.next = 0
	d.press("enter")
	d.has("› stack", "FRAME", "1 live allocations", "0x1000", "/src/prog:1")
	if q := source.asked[len(source.asked)-1]; q.Allocations == nil || q.Allocations.Stack != 1 {
		t.Errorf("it asked for %+v", q)
	}
	d.interval()
	if q := source.asked[len(source.asked)-1]; q.Allocations != nil {
		t.Error("it asks for all live allocations each interval")
	}
	d.has("0x1000") // as of before
	d.press("esc esc esc")
	d.hasNot("›")
	d.press("esc")
	d.has("prog_0")
}

// The choice stays with its row, wherever that goes; before one was chosen it is the
// first row.
func TestChoiceFollows(t *testing.T) {
	source := many()
	d := drive(t, source, Options{Interval: time.Second})
	d.resize(100, 40)
	d.press("tab tab")
	for range 3 {
		d.interval()
	}
	if got := d.shown.Stacks[d.here().lists[listStacks].at].Text(); !strings.HasPrefix(got, "prog_0") {
		t.Errorf("at first %s is chosen", got)
	}
	d.press("s") // by growth
	d.interval()
	d.press("g")
	if got := d.shown.Stacks[0].Text(); !strings.HasPrefix(got, "prog_2") {
		t.Errorf("%s grew most", got)
	}
	d.press("S")
	at := d.here().lists[listStacks].at
	if got := d.shown.Stacks[at].Text(); at == 0 || !strings.HasPrefix(got, "prog_2") {
		t.Errorf("turned round, %s in row %d is chosen", got, at)
	}
	d.has("IN 4.0s↑")
}

func TestFilter(t *testing.T) {
	d := drive(t, many(), Options{Interval: time.Second})
	d.resize(100, 40)
	d.press("/ P r O g _ 3")
	d.has("filter: PrOg_3_", "prog_3")
	d.hasNot("prog_2", "prog_0")
	d.press("backspace 4 enter")
	d.has("prog_4", "filter: PrOg_4")
	d.press("q") // is a key again: nothing is left to draw
	d.press("esc")
	d.has("prog_0")
	d.press("/ x x x")
	d.has("none")
	d.press("esc")
	d.has("prog_0")
	d.press("/")
	d.send(tea.PasteMsg{Content: "prog_1\x1b[2J\n"})
	d.has(`filter: prog_1\x1b[2J\x0a`)
	for range 300 {
		d.press("y")
	}
	if n := len([]rune(d.filter)); n != maxFilter {
		t.Errorf("a filter of %d characters", n)
	}
}

// A live view that is paused shows what it showed, and the trace is asked for nothing.
func TestPause(t *testing.T) {
	source := many()
	d := drive(t, source, Options{Interval: time.Second})
	d.interval()
	d.press("space")
	d.has("paused")
	before, asked := strings.Replace(d.shows(), "paused", "", 1), len(source.asked)
	d.interval()
	if after := strings.Replace(d.shows(), "paused", "", 1); before != after || len(source.asked) != asked {
		t.Errorf("it asked %d times, and shows\n%s\nafter\n%s", len(source.asked)-asked, after, before)
	}
	// What is asked for is looked at all the same.
	source.looks[2].Snapshot.Live = []snapshot.Allocation{{Address: 0x1000, Size: 100 * mib, Time: livetest.Began}}
	d.press("tab tab enter")
	d.has("paused", "1.00s", "1 live allocations as of 2.00s", "0x1000")
	d.press("esc space")
	d.interval()
	d.has("live", "3.00s")
}

func TestMouse(t *testing.T) {
	source := many()
	d := drive(t, source, Options{Interval: time.Second})
	d.resize(120, 40)
	find := func(text string) (x, y int) {
		t.Helper()
		for y, l := range strings.Split(d.shows(), "\n") {
			if before, _, ok := strings.Cut(l, text); ok {
				return len([]rune(before)), y
			}
		}
		t.Fatalf("%q is not on the screen:\n%s", text, d.shows())
		return 0, 0
	}
	click := func(text string) {
		t.Helper()
		x, y := find(text)
		d.send(tea.MouseClickMsg{X: x, Y: y, Button: tea.MouseLeft})
	}
	click("prog_3")
	if l := d.here(); l.focus != listStacks || l.Stack != nil || l.lists[listStacks].at != 2 { // the third has nothing yet
		t.Errorf("row %d of list %d is chosen", l.lists[l.focus].at, l.focus)
	}
	click("prog_3")
	d.has("› stack", "/src/prog:4")
	d.press("esc")
	x, y := find("ALLOCATED")
	d.send(tea.MouseClickMsg{X: x + 2, Y: y, Button: tea.MouseLeft})
	if d.here().by != live.ByAllocated || d.here().reverse {
		t.Errorf("sorted by %s", d.here().by)
	}
	click("ALLOCATED↓")
	d.has("ALLOCATED↑")
	_, y = find("prog_4")
	at := d.here().lists[listStacks].at
	d.send(tea.MouseWheelMsg{X: 3, Y: y, Button: tea.MouseWheelDown})
	if got := d.here().lists[listStacks].at; got == at {
		t.Errorf("the wheel moved from row %d to %d", at, got)
	}
	d.send(tea.MouseClickMsg{X: 119, Y: 39, Button: tea.MouseLeft}) // on nothing
	d.send(tea.MouseClickMsg{X: -1, Y: 1000, Button: tea.MouseLeft})
}

// Keys, and the slider, move through the time of a recording; space plays it.
func TestTime(t *testing.T) {
	d := recorded(t, "torch_native", 10900*time.Millisecond)
	d.resize(100, 30)
	d.has("10.90s", "5.38 GiB", "recording")
	d.press("home")
	d.has(" 0.00s ", "holds 0 B")
	d.press("right right right")
	if d.at != 3*(d.span/100) {
		t.Errorf("it is at %v of %v", d.at, d.span)
	}
	d.press("]")
	if d.at != 3*(d.span/100)+time.Second {
		t.Errorf("it is at %v of %v", d.at, d.span)
	}
	d.press("end")
	d.has(" 12.09s ")
	end := d.shows()
	d.press("left right")
	if d.shows() != end {
		t.Errorf("back and on it shows\n%s\nnot\n%s", d.shows(), end)
	}
	d.send(tea.MouseClickMsg{X: 99 - 8, Y: 1, Button: tea.MouseLeft})
	if d.at < d.span*95/100 {
		t.Errorf("a click at the slider's end went to %v", d.at)
	}
	d.send(tea.MouseClickMsg{X: 9, Y: 1, Button: tea.MouseLeft})
	if d.at > d.span*5/100 {
		t.Errorf("a click at the slider's beginning went to %v", d.at)
	}
	d.press("home space")
	d.has("playing")
	for range 20 {
		d.interval()
	}
	if d.at != d.span || !d.paused {
		t.Errorf("played, it is at %v", d.at)
	}
	d.press("space") // from the beginning
	if d.at != 0 || d.paused {
		t.Errorf("played again, it is at %v", d.at)
	}
}

// A snapshot that fails is told, and the next one may be better. A trace that has ended is
// asked no more.
func TestFailures(t *testing.T) {
	source := many()
	source.err = errors.New("the file is\x1b[2J gone")
	d := drive(t, source, Options{Interval: time.Second})
	d.has(`the file is\x1b[2J gone`, "Looking")
	d.press("tab enter down s / x enter n esc r")
	source.err = nil
	d.interval()
	d.hasNot("gone")
	source.looks = append([]*live.Snapshot{}, source.looks...)
	last := sized(20, "prog", mib)
	last.Ended = "every traced process has ended"
	source.looks, source.next = []*live.Snapshot{last}, 0
	d.interval()
	d.has("ended")
	asked := len(source.asked)
	d.interval()
	if len(source.asked) != asked {
		t.Error("a trace that has ended is asked on")
	}
}

// Messages that come while a snapshot is on its way start no second one.
func TestOneLookAtATime(t *testing.T) {
	source := many()
	m := NewModel(source, Options{Interval: time.Second})
	first := m.request(true)
	if first == nil || m.request(false) != nil || m.tock() != nil {
		t.Fatal("two looks at a time")
	}
	_, next := m.Update(first())
	if next == nil {
		t.Fatal("what was asked for meanwhile is not looked at")
	}
	if _, next = m.Update(next()); next != nil {
		t.Error("a third look, which nobody asked for")
	}
}

// Of too many live allocations the view shows the youngest, and says so.
func TestOlder(t *testing.T) {
	l := sized(1, "a", 5)
	l.Older = 7
	l.Snapshot.Live = []snapshot.Allocation{{Address: 1, Size: 2, Time: livetest.Began}, {Address: 2, Size: 3, Time: livetest.Began}}
	d := drive(t, &made{looks: []*live.Snapshot{l}}, Options{Interval: time.Second})
	d.resize(120, 40)
	d.press("tab tab enter")
	d.has("9 live allocations as of", "of them the youngest 2")
}

// The object that holds most of what a stack made stands in its row, and in its details
// when a snapshot for these has no holders. Control characters of a path are not shown.
func TestHolder(t *testing.T) {
	l := sized(0, "a", 10*mib, 20*mib)
	x := l.Snapshot.Samples[1]
	x.Holder = "trainer.history[*]\x1b[2J"
	l.Snapshot.Samples, l.Sites = append(l.Snapshot.Samples, x), append(l.Sites, l.Sites[1])
	d := drive(t, &made{looks: []*live.Snapshot{l, sized(1, "a", 10*mib, 20*mib)}}, Options{Interval: time.Second})
	d.resize(200, 24)
	d.has("HOLDER", "trainer.history[*]")
	d.press("tab tab enter")
	d.has("held by trainer.history[*]")
	plain := drive(t, &made{looks: []*live.Snapshot{sized(0, "a", 10*mib)}}, Options{Interval: time.Second})
	plain.resize(200, 24)
	plain.hasNot("HOLDER")
}
