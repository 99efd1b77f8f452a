package timeline

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/browsertest"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
)

// open opens a page from its file, and waits until it is there.
func open(t testing.TB, html []byte, width, height int64) *browsertest.Browser {
	t.Helper()
	path := filepath.Join(t.TempDir(), "page.html")
	if err := os.WriteFile(path, html, 0o644); err != nil {
		t.Fatal(err)
	}
	b := browsertest.Open(t, "file://"+path, width, height)
	b.Until("document.documentElement.dataset.ready || !document.getElementById('failed').hidden")
	if text := b.Text("failed"); text != "" {
		t.Fatal(text)
	}
	return b
}

// set sets a control of the page, as its user does.
func set(b *browsertest.Browser, id, value string) {
	b.Ask(fmt.Sprintf(`(() => { const e = document.getElementById(%q); e.value = %q; return e.dispatchEvent(new Event(e.type === "search" ? "input" : "change")); })()`, id, value))
}

// totals returns what a place holds after each instant.
func (p *page) totals(place int) (out []int64) {
	sum := int64(0)
	for _, x := range p.instants {
		for _, d := range x.by {
			if p.meta.Rows.Place[d.row] == place {
				sum += d.bytes
			}
		}
		out = append(out, sum)
	}
	return out
}

// exact is how the page writes a number of bytes that is told to the byte.
func exact(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s + " bytes"
}

func left(e *input.DispatchMouseEventParams) { e.Button, e.ClickCount = input.MouseButtonLeft, 1 }

var shift = chromedp.ButtonModifiers(chromedp.ModifierShift)

// onChart returns what moves the mouse over the chart, and what clicks into it, at a part of its
// width, and of its height.
func onChart(b *browsertest.Browser) (mouse func(kind input.DispatchMouseEventType, x, y float64, more ...chromedp.MouseOption), click func(x float64, more ...chromedp.MouseOption)) {
	at := b.Box(".u-over")
	mouse = func(kind input.DispatchMouseEventType, x, y float64, more ...chromedp.MouseOption) {
		p := at(x, y)
		b.Run(chromedp.MouseEvent(kind, p.X, p.Y, more...))
	}
	return mouse, func(x float64, more ...chromedp.MouseOption) {
		more = append(more, left)
		mouse(chromedp.MouseMoved, x, 0.5)
		mouse(chromedp.MousePressed, x, 0.5, more...)
		mouse(chromedp.MouseReleased, x, 0.5, more...)
	}
}

// Where nothing changes, what is told is of the moment that is pointed at. Two such moments have
// no difference, and the page says so.
func TestPlateau(t *testing.T) {
	html, _, _ := written(t, "../../../test/recordings/profiler.gmt", whole)
	b := open(t, html, 1300, 900)
	mouse, click := onChart(b)
	said := regexp.MustCompile(`^At (\S+) s, (.* bytes\)) was held\. (Nothing had changed since \S+ s\.)$`)
	var before []string
	for _, x := range []float64{0.5, 0.6} {
		mouse(chromedp.MouseMoved, x, 0.5)
		b.Until("document.getElementById('here').textContent.includes('Nothing had changed since')")
		got := said.FindStringSubmatch(b.Text("here"))
		if got == nil || before != nil && (got[1] <= before[1] || !slices.Equal(got[2:], before[2:])) {
			t.Fatalf("%q, after %q", b.Text("here"), before)
		}
		b.Wants("the tip", b.Text("tip"), got[1][:4])
		before = got
	}
	click(0.6)
	b.Wants("the moment", b.Text("moment")+b.Text("command"), "Held at "+before[1]+" s", "--at "+before[1][:5])
	click(0.5, shift)
	b.Wants("compared", b.Text("moment"), "The same at "+before[1]+" s (A) and at ", " (B): ", "Nothing changed in between.")
	b.Wants("the table", b.Text("more"), "Nothing differs.")
	b.Quiet()
}

// Lines over the chart have a legend, and each step has its number if there is room for it.
func TestLines(t *testing.T) {
	html, _, _ := written(t, "../../../test/recordings/profiler.gmt", whole)
	b := open(t, html, 1300, 900)
	b.Wants("the legend", b.Text("legend"), "a training step began, and its number", "grew to that much for the first time")
	b.Ask("(() => { const { prototype } = CanvasRenderingContext2D, { fillText } = prototype; window.said = []; prototype.fillText = function (text, ...at) { said.push(text); fillText.call(this, text, ...at); }; })()")
	b.Dark(true) // it is drawn again
	b.Until("said.length > 0")
	labels := strings.Split(b.Ask("said.join('|')"), "|")
	for _, step := range []string{"1", "3", "4", "5"} { // the second begins 4 pixels after the first
		if !slices.Contains(labels, step) {
			t.Errorf("step %s has no label: %q", step, labels)
		}
	}
	b.Quiet()
}

// What a user does by mouse: hover, zoom, choose two moments, group.
func TestMouse(t *testing.T) {
	html, p, _ := written(t, "../../../test/recordings/profiler.gmt", whole)
	b := open(t, html, 1300, 900)
	gpu := slices.IndexFunc(p.meta.Places, func(x placeMeta) bool { return x.Name == "GPU 0" })
	totals := p.totals(gpu)
	peak := slices.Max(totals)
	b.Wants("the first moment", b.Text("moment"), "the peak")
	b.Wants("tab", b.Text("places"), "GPU 0", "pinned host memory", "peak 3.18 GiB")

	mouse, click := onChart(b)
	mouse(chromedp.MouseMoved, 0.6, 0.8)
	b.Until("!document.getElementById('tip').hidden")
	b.Wants("hover", b.Text("tip"), "tensors", "cached, unused", "context", "GiB", "is one stack's:", ".py")
	b.Until("/ bytes\\)/.test(document.getElementById('here').textContent)")

	before := b.Text("span")
	mouse(chromedp.MouseMoved, 0.2, 0.5)
	mouse(chromedp.MousePressed, 0.2, 0.5, left)
	mouse(chromedp.MouseMoved, 0.3, 0.5, left)
	mouse(chromedp.MouseMoved, 0.4, 0.5, left)
	mouse(chromedp.MouseReleased, 0.4, 0.5, left)
	if b.Text("span") == before {
		t.Error("a drag does not zoom")
	}
	for range 12 {
		b.Click("in")
	}
	b.Wants("zoomed in", b.Text("span"), "each drawn")
	b.Click("all")

	click(0.6)
	first := b.Text("moment")
	b.Wants("a moment", first, "Held at")
	b.Wants("its table", b.Ask("document.getElementById('table').tHead.textContent"), "BYTES", "OWNER", "CATEGORY")
	click(0.9, shift)
	b.Wants("two moments", b.Text("moment"), "(A) to", "(B)")
	b.Wants("their difference", b.Ask("document.getElementById('table').tHead.textContent"), "CHANGE", "A", "B")
	b.Wants("by bytes", b.Ask("document.querySelector('#table tbody td').title"), " bytes")
	if b.Ask("document.querySelectorAll('#flame .f').length") == "0" {
		set(b, "sign", "-1")
	}
	if b.Ask("document.querySelectorAll('#flame .f').length") == "0" {
		t.Error("no flame graph of the difference")
	}
	b.Click("compare")
	b.Wants("one moment again", b.Text("moment"), "Held at")

	for by, has := range map[string]string{"owner": "cublas", "category": "optimizer_state", "module": "GPT2", "process": "python3 (429)", "stack": "torch_profiled.py"} {
		set(b, "group", by)
		b.Wants("legend by "+by, b.Text("legend"), has)
	}

	b.Click("peak")
	b.Wants("the peak", b.Text("here"), exact(peak))
	b.Wants("the map", b.Text("maptext"), "segments", "in tensors", "free in")
	b.Wants("its legend", b.Text("mapkey"), "free, in a segment", "a segment or an allocation begins")
	b.Wants("its axis", b.Text("mapspan"), "All 2.57 GiB in view, 239 MiB a line.")
	set(b, "filter", "no such text")
	b.Wants("nothing is chosen", b.Text("mapkey"), "not what is chosen above")
	b.Quiet()
}

// All of it is there for who has a keyboard alone.
func TestKeyboard(t *testing.T) {
	html, p, _ := written(t, "../../../test/recordings/profiler.gmt", whole)
	b := open(t, html, 1300, 900)
	totals := p.totals(slices.IndexFunc(p.meta.Places, func(x placeMeta) bool { return x.Name == "GPU 0" }))
	b.TabTo("group")
	b.Keys("o") // owner
	b.Wants("legend", b.Text("legend"), "cublas")
	b.TabTo("chart")
	b.Keys(kb.Home)
	b.Wants("the first change", b.Text("here"), exact(totals[0]))
	for i := 1; i < 60; i++ {
		b.Keys(kb.ArrowRight)
		b.Wants(fmt.Sprint("change ", i), b.Text("here"), exact(totals[i]))
	}
	before := b.Text("span")
	b.Keys("+", "+")
	if b.Text("span") == before {
		t.Error("+ does not zoom")
	}
	b.Keys("0", "p")
	peak := slices.Index(totals, slices.Max(totals))
	b.Wants("the peak", b.Text("here"), exact(totals[peak]), "peak")
	b.Wants("chosen", b.Text("moment"), "the peak")
	b.Keys(kb.End, "c")
	b.Wants("compared", b.Text("moment"), "(A) to")
	b.Keys(kb.Escape)
	b.Wants("not compared", b.Text("moment"), "Held at")
	b.Keys(kb.Home, "n")
	b.Wants("a mark", b.Text("here"), "grew to")
	b.Keys("n", kb.Enter)
	b.Wants("chosen again", b.Text("moment"), "Held at")
	if strings.Contains(b.Text("moment"), "the peak") {
		t.Error("Enter chooses nothing")
	}
	b.Keys("p")

	b.TabTo("native")
	b.Keys(kb.Tab)
	if b.Ask("document.activeElement.getAttribute('role')") != "treeitem" {
		t.Fatalf("after the switch of native frames comes %s", b.Focused())
	}
	b.Keys(kb.ArrowDown)
	frame := b.Text("frame")
	b.Wants("a frame", frame, "%", " bytes")
	b.Keys(kb.Enter)
	b.Wants("zoomed into", b.Ask("document.activeElement.style.width"), "px")
	b.Keys(kb.Escape)
	b.Keys(kb.Tab)
	if b.Focused() != "BUTTON" || b.Ask("document.activeElement.textContent") != "BYTES" {
		t.Fatalf("after the flame graph comes %s", b.Focused())
	}
	for b.Keys(kb.Tab); b.Focused() == "BUTTON"; b.Keys(kb.Tab) {
	}
	if b.Focused() != "SUMMARY" {
		t.Fatalf("after the table's head comes %s", b.Focused())
	}
	b.Keys(kb.Enter)
	b.Until("document.activeElement.parentElement.querySelector('ol').children.length > 3")
	b.TabTo("map")
	b.Keys(kb.ArrowRight, kb.ArrowRight)
	b.Wants("a block", b.Text("block"), " at 0x")
	b.Keys("+", "+")
	b.Wants("the map zoomed", b.Text("mapspan"), " of ", "in view")
	b.Keys("0")
	b.Wants("the map", b.Text("mapspan"), "All ")
	b.Quiet()
}

// Each recording's page is shown, and fits a screen and a phone, in light and dark.
func TestSizes(t *testing.T) {
	for _, path := range recordings(t) {
		t.Run(filepath.Base(path), func(t *testing.T) { // whose end closes the browser
			html, _, _ := written(t, path, whole)
			b := open(t, html, 1300, 900)
			fits := func(width int) {
				t.Helper()
				b.Until(fmt.Sprintf("innerWidth === %d", width))
				if b.Ask("document.documentElement.scrollWidth <= innerWidth") != "true" {
					t.Errorf("%s wide on %d", b.Ask("document.documentElement.scrollWidth"), width)
				}
			}
			fits(1300)
			light := b.Ask("getComputedStyle(document.body).backgroundColor")
			b.Dark(true)
			if dark := b.Ask("getComputedStyle(document.body).backgroundColor"); dark == light {
				t.Errorf("dark is %s too", dark)
			}
			b.Phone(390, 844)
			fits(390)
			b.Quiet()
		})
	}
}

// Names are a traced program's choice. They are text, wherever they are shown, and cut.
func TestHostileNames(t *testing.T) {
	long := strings.Repeat("x", 10_000)
	names := []string{
		"</script><script>hacked=1</script>", "<img src=x onerror=hacked=1>", "\"><b class=hacked>", "--><!--", "]]>", "\u2028\u2029'+hacked=1+'", "\x00\x1b[2J\a\u202e", long, "&lt;&#x3c;", "{{.}}",
	}
	var records []record.Record
	trace := traceOf()
	trace.Target, trace.CommandLine = names[0], names[1]
	trace.APIs = []string{"", names[2]}
	records = append(records, trace, &record.Process{Process: proc, Target: true, Name: names[1], FromStart: true}, momentAt(0))
	for i, name := range names {
		records = append(records, alloc(proc, time.Duration(i+1)*time.Millisecond, uint64(i+1), uint64(i+1)<<20, 1<<20),
			stack(proc, uint64(i+1), "/x/site-packages/"+name+"/"+name+".py", name))
	}
	records = append(records, &record.Note{Text: names[1]}, momentAt(time.Second))
	html, p, _ := written(t, recordtest.File(t, records...), whole)
	for _, s := range p.meta.Strings {
		if len([]rune(s)) > 10_000 {
			t.Errorf("a name of %d characters", len(s))
		}
	}
	if n, pieces := strings.Count(string(html), "</script>"), strings.Count(string(html), "data-block="); n != pieces+1 || pieces != 5 {
		t.Errorf("%d scripts end, of %d pieces", n, pieces)
	}
	b := open(t, html, 900, 900)
	for _, by := range []string{"stack", "owner", "process", "module"} {
		set(b, "group", by)
	}
	b.Ask("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
	b.Until("document.querySelector('#table ol').children.length")
	b.Run(chromedp.MouseEvent(chromedp.MouseMoved, 700, 350))
	b.TabTo("map")
	b.Keys(kb.ArrowRight)
	if got := b.Ask("typeof hacked + document.querySelectorAll('img, .hacked, b.hacked, iframe').length"); got != "undefined0" {
		t.Error(got)
	}
	b.Wants("the title", b.Text("title"), names[0])
	b.Wants("document.title", b.Ask("document.title"), names[0])
	b.Wants("the table", b.Text("table"), "<img src=x onerror=hacked=1>", `\x00\x1b[2J`)
	b.Wants("the notes", b.Text("notes"), names[1])
	if b.Ask("document.documentElement.scrollWidth <= innerWidth") != "true" {
		t.Errorf("it is %s wide on 900", b.Ask("document.documentElement.scrollWidth"))
	}
	b.Quiet()
}

// The numbers of a column are as wide as the widest is: each is to the byte.
func TestWidths(t *testing.T) {
	for _, most := range []uint64{1 << 6, 1 << 12, 1 << 20, 1<<31 + 1<<10, 1 << 40, 1 << 50} {
		records := []record.Record{traceOf(), &record.Process{Process: proc, Target: true, Name: "prog", FromStart: true}, momentAt(0), stack(proc, 1, "/x/train.py", "train")}
		for i := range 10 {
			after := time.Duration(2*i+1) * time.Millisecond
			records = append(records, alloc(proc, after, 1, 1<<52, most-uint64(i)), free(proc, after+time.Millisecond, 1<<52))
		}
		html, p, _ := written(t, recordtest.File(t, append(records, momentAt(time.Second))...), whole)
		totals := p.totals(0)
		b := open(t, html, 900, 900)
		b.TabTo("chart")
		b.Keys(kb.Home)
		for i := range totals {
			b.Wants(fmt.Sprint("change ", i), b.Text("here"), exact(totals[i]))
			b.Keys(kb.ArrowRight)
		}
		if len(totals) != 20 || totals[0] != int64(most) {
			t.Errorf("%d", totals)
		}
		b.Quiet()
	}
}

// Until its script has run, a page says that it loads, and shows nothing else.
func TestLoading(t *testing.T) {
	html, _, _ := written(t, "../../../test/recordings/profiler.gmt", whole)
	if open(t, html, 900, 900).Ask("document.getElementById('loading').checkVisibility()") != "false" {
		t.Error("it loads for ever")
	}
	path := filepath.Join(t.TempDir(), "page.html")
	if err := os.WriteFile(path, regexp.MustCompile(`(?s)<script.*</script>`).ReplaceAll(html, nil), 0o644); err != nil {
		t.Fatal(err)
	}
	b := browsertest.Open(t, "file://"+path, 900, 900)
	b.Until("document.readyState === 'complete'")
	if text := b.Ask("document.body.innerText.replace(/\\s+/g, ' ').trim()"); text != "GPU memory Loading …" {
		t.Errorf("it says %q", text)
	}
}

// A page of which the end is missing says so.
func TestCutPage(t *testing.T) {
	html, _, _ := written(t, "../../../test/recordings/profiler.gmt", whole)
	data := bytes.Index(html, []byte("data-block="))
	for _, left := range []int{0, 1000, len(html) - data - 1000} {
		path := filepath.Join(t.TempDir(), "page.html")
		if err := os.WriteFile(path, html[:data+left], 0o644); err != nil {
			t.Fatal(err)
		}
		b := browsertest.Open(t, "file://"+path, 900, 900)
		b.Until("!document.getElementById('failed').hidden")
		b.Wants("cut", b.Text("failed"), "This page cannot be shown: ")
		b.Until("document.getElementById('loading').hidden")
	}
}

// A long recording's page has each change; or it says what it leaves out, and has the peak.
func TestLong(t *testing.T) {
	path := filepath.Join(t.TempDir(), "long.gmt")
	training(t, path, *events)
	for _, deltas := range []int{0, min(*events/2, 1_000_000)} {
		o := whole
		o.deltas = deltas
		html, p, _ := written(t, path, o)
		if p.meta.Exact != (deltas == 0) || p.meta.Exact && len(p.instants) != p.meta.Changes || len(html) > 50_000_000 {
			t.Errorf("a page of %d bytes has %d instants of %d changes, exact: %v", len(html), len(p.instants), p.meta.Changes, p.meta.Exact)
		}
		b := open(t, html, 1300, 900)
		if deltas > 0 {
			b.Wants("notes", b.Text("notes"), "Peaks are exact", "moments", "of each ", "Zooming in shows no more")
		}
		totals := p.totals(slices.IndexFunc(p.meta.Places, func(x placeMeta) bool { return x.GPU }))
		b.Click("peak")
		peak := slices.Index(totals, slices.Max(totals))
		b.Wants("the peak", b.Text("here"), exact(totals[peak]))
		// From there on each change is one key away.
		b.TabTo("chart")
		for _, at := range []int{peak + 1, peak + 2, peak + 3} {
			b.Keys(kb.ArrowRight)
			b.Wants("a change later", b.Text("here"), exact(totals[min(at, len(totals)-1)]))
		}
		b.Quiet()
	}
}

// The page says which command shows the same, and its address brings it back.
func TestAddress(t *testing.T) {
	html, p, _ := written(t, "../../../test/recordings/profiler.gmt", whole)
	b := open(t, html, 1300, 900)
	x, y := p.instants[len(p.instants)/3], p.instants[len(p.instants)/2]
	at := func(x pageInstant) string {
		return strings.TrimRight(fmt.Sprintf("%.9f", float64(x.time)/1e9), "0") + "s"
	}
	b.Wants("command", b.Text("command"), "gpumemtrace report RECORDING --at ")
	path := b.Ask("location.pathname")
	one := browsertest.Open(t, "file://"+path+"#of=GPU+0&by=owner&at="+at(x), 1300, 900)
	one.Until("document.documentElement.dataset.ready")
	one.Wants("command", one.Text("command"), "report RECORDING --at "+at(x))
	one.Wants("legend", one.Text("legend"), "pytorch")
	two := browsertest.Open(t, "file://"+path+"#of=GPU+0&at="+at(x)+"&to="+at(y), 1300, 900)
	two.Until("document.documentElement.dataset.ready")
	two.Wants("command", two.Text("command"), "diff RECORDING --before "+at(x)+" --after "+at(y))
	address := two.Ask("location.hash")
	if want := "#of=GPU+0&by=cause&at=" + at(x) + "&to=" + at(y); address != want {
		t.Errorf("the address ends with %s, want %s", address, want)
	}
}

// The legend has no entry for what never held a thousandth of the peak, which is 5.50 GiB: the others
// have it.
func TestSmallGroups(t *testing.T) {
	html, _, _ := written(t, "../../../test/recordings/torch_native.gmt", whole)
	legend := open(t, html, 1300, 900).Text("legend")
	if !strings.Contains(legend, "2 others") || !strings.Contains(legend, "local memory") || strings.Contains(legend, "code") {
		t.Errorf("the legend is %q, want no code and no driver rounding in it", legend)
	}
}

// A legend entry shows its group alone, a text only what names it, and the address keeps both.
func TestNarrow(t *testing.T) {
	html, p, _ := written(t, "../../../test/recordings/profiler.gmt", whole)
	b := open(t, html, 1300, 900)
	set(b, "group", "owner")
	all := b.Text("moment")
	held := func(match func(row int) bool) string {
		last := p.at(uint64(math.MaxInt64))
		sum := int64(0)
		for row, n := range last[len(last)-1] {
			if p.meta.Places[p.meta.Rows.Place[row]].Name == "GPU 0" && match(row) {
				sum += n
			}
		}
		return exact(sum)
	}
	press := func(key string) {
		b.Ask(`String(document.getElementById("chart").focus())`)
		b.Keys(key)
	}
	press(kb.End)
	b.Wants("all", b.Text("here"), held(func(int) bool { return true }))
	click := `String([...document.querySelectorAll("#legend button")].find((b) => b.textContent.startsWith("cublas")).click())`
	b.Ask(click)
	press(kb.End)
	b.Wants("one owner", b.Text("here"), held(func(row int) bool { return p.text(p.meta.Rows.Owner[row]) == "cublas" }))
	b.Ask(click)
	if got := b.Text("moment"); got != all {
		t.Errorf("back it shows %q, not %q", got, all)
	}
	set(b, "filter", "no such text")
	press(kb.End)
	b.Wants("nothing", b.Text("here"), "(0 bytes)")
	if address := b.Ask("location.hash"); !strings.Contains(address, "text=no+such+text") {
		t.Errorf("the address is %s", address)
	}
}
