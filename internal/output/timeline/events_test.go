package timeline

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"
)

// The list of events has each allocation and free between two moments, or so many about the
// chosen one, and says how many more there are.
func TestEvents(t *testing.T) {
	html, p, _ := written(t, "../../../test/recordings/torch_native.gmt", whole)
	b := open(t, html, 1300, 900)
	gpu := slices.IndexFunc(p.meta.Places, func(x placeMeta) bool { return x.Name == "GPU 0" })
	var want []string
	var came, went int64
	for _, x := range p.instants {
		for _, d := range x.by {
			if p.meta.Rows.Place[d.row] != gpu || slices.Contains([]string{"driver rounding", "calls under way"}, p.text(p.meta.Rows.Cause[d.row])) {
				continue
			}
			came, went = came+max(d.bytes, 0), went+max(-d.bytes, 0)
			want = append(want, exact(max(d.bytes, -d.bytes))+" "+p.text(p.meta.Rows.Title[d.row]))
		}
	}
	listed := func() []string {
		return strings.Split(b.Ask(`[...document.querySelectorAll("#eventlist tbody tr")].map((tr) => tr.cells[1].title.replace("-", "") + " " + tr.querySelector("summary").textContent).join("|")`), "|")
	}
	b.Ask("document.querySelector('#events summary').click()")
	b.Until("document.querySelectorAll('#eventlist tbody tr').length > 0")
	b.TabTo("chart")
	b.Keys("0", kb.Home, kb.Enter)
	if got := listed(); !slices.Equal(got, want) || len(want) < 100 || len(want) > 1000 {
		t.Errorf("%d events, want %d: %q, want %q", len(got), len(want), got[:3], want[:3])
	}
	b.Wants("their sum", b.Text("eventstext"), fmt.Sprintf("%d events: ", len(want)))
	b.Keys(kb.ArrowRight, kb.ArrowRight, kb.ArrowRight, "c")
	if got := listed(); len(got) > 3 || !slices.Contains(want, got[0]) {
		t.Errorf("of three changes %q", got)
	}
	b.Keys(kb.Escape)
	b.Ask("document.querySelector('#eventlist tbody button').click()")
	b.Wants("its moment", b.Text("moment"), "Held at "+b.Ask("document.querySelector('#eventlist tbody button').textContent"))
	b.Wants("the address", b.Ask("location.hash"), "events=1")
	b.Quiet()

	// Tensors come out of cached memory: that is one event, not two.
	html, _, _ = written(t, "../../../test/recordings/profiler.gmt", whole)
	b = open(t, html, 1300, 900)
	b.Ask("document.querySelector('#events summary').click()")
	b.Until("document.querySelectorAll('#eventlist tbody tr').length === 1000")
	b.Wants("more", b.Text("eventstext"), "Listed are 1,000 rows", "more are not")
	peak := b.Ask("document.querySelector('#eventlist tr.on button').textContent")
	b.Wants("the chosen moment is among them", b.Text("moment"), "Held at "+peak)
	if segments := b.Ask(`[...document.querySelectorAll("#eventlist tbody tr")].filter((tr) => tr.textContent.includes("cached")).length`); len(segments) > 2 {
		t.Errorf("%s events of cached memory", segments)
	}
	b.Quiet()
}
