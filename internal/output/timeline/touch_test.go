package timeline

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/browsertest"
)

// What a user does by fingers: a tap shows what the mouse does, two fingers zoom, one
// moves, and up and down it scrolls the page.
func TestFingers(t *testing.T) {
	html, _, _ := written(t, "../../../test/recordings/profiler.gmt", whole)
	b := open(t, html, 390, 844)
	b.Phone(390, 844)
	b.Until("matchMedia('(pointer: coarse)').matches && innerWidth === 390")
	b.Wants("help", b.Ask("document.getElementById('keys').innerText"), "Tap", "Pinch")
	chart := b.Box(".u-over")

	b.Tap(chart(0.6, 0.8))
	b.Until("!document.getElementById('tip').hidden")
	b.Wants("the tap's", b.Text("tip"), "tensors", "cached, unused", "is one stack's:", ".py")
	b.Wants("its moment", b.Text("moment"), "Held at")
	if strings.Contains(b.Text("moment"), "the peak") {
		t.Error("a tap chooses nothing")
	}
	if b.Ask("(() => { const r = document.getElementById('tip').getBoundingClientRect(); return r.left >= 0 && r.right <= innerWidth && r.top >= 0 && r.bottom <= innerHeight; })()") != "true" {
		t.Error("what the tap shows is not within the window")
	}

	all := b.Text("span")
	seen := func() string { return b.Text("span") }
	pinch := func(at func(x, y float64) browsertest.Point, x, y, from, to float64) {
		b.Drag(browsertest.Path{From: at(x-from, y), To: at(x-to, y)}, browsertest.Path{From: at(x+from, y), To: at(x+to, y)})
	}
	pinch(chart, 0.2, 0.5, 0.07, 0.17)
	b.Until("document.getElementById('tip').hidden")
	b.Until("document.getElementById('span').textContent !== '" + all + "'")

	// What is under a finger goes with it.
	moment := func(x float64) (seconds float64) {
		b.Tap(chart(x, 0.5))
		b.Until("!document.getElementById('tip').hidden")
		if _, err := fmt.Sscanf(b.Text("moment"), "Held at %f s", &seconds); err != nil {
			t.Fatal(b.Text("moment"), err)
		}
		return seconds
	}
	chart = b.Box(".u-over")
	var wide float64
	if _, err := fmt.Sscanf(seen(), "%f s in view", &wide); err != nil {
		t.Fatal(seen(), err)
	}
	before := moment(0.2)
	b.Drag(browsertest.Path{From: chart(0.2, 0.5), To: chart(0.6, 0.5)})
	b.Until("document.getElementById('tip').hidden")
	if under := moment(0.6); math.Abs(under-before) > wide/50 {
		t.Errorf("under the finger is %f s, not %f s", under, before)
	}

	now, top := seen(), b.Ask("scrollY")
	b.Drag(browsertest.Path{From: chart(0.5, 0.9), To: chart(0.52, 0.1)})
	b.Until("scrollY > " + top)
	if seen() != now {
		t.Error("scrolling the page changes the view")
	}

	b.Click("peak")
	places := b.Box("#map")
	block := func(x float64) string {
		b.Tap(places(x, 0.68))
		b.Until("/ at 0x/.test(document.getElementById('block').textContent)")
		return b.Text("block")
	}
	block(0.5)
	b.Wants("the map", b.Text("mapspan"), "All ")
	pinch(places, 0.5, 0.68, 0.1, 0.4)
	b.Until("/ of .* in view/.test(document.getElementById('mapspan').textContent)")
	there, under := block(0.3), block(0.7)
	if there == under {
		t.Errorf("one block everywhere: %q", there)
	}
	b.Drag(browsertest.Path{From: places(0.7, 0.68), To: places(0.3, 0.68)})
	block(0.9)
	if got := block(0.3); got != under {
		t.Errorf("under the finger lies %q, not %q", got, under)
	}
	pinch(places, 0.5, 0.5, 0.4, 0.01)
	pinch(places, 0.5, 0.5, 0.4, 0.05)
	b.Until("/^All /.test(document.getElementById('mapspan').textContent)")
	b.Quiet()
}
