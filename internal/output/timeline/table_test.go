package timeline

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/browsertest"
)

// cells returns the cells of a column of the table.
func cells(b *browsertest.Browser, name string) []string {
	return strings.Split(b.Ask(`(() => {
		const at = [...document.querySelectorAll("#table th")].findIndex((th) => th.textContent === "`+name+`");
		return [...document.querySelectorAll("#table tbody tr")].map((tr) => tr.cells[at].textContent).join("|");
	})()`), "|")
}

// A header sorts the table by its column, by mouse and by keys, says so, and the address
// brings it back.
func TestSort(t *testing.T) {
	html, _, _ := written(t, "../../../test/recordings/profiler.gmt", whole)
	b := open(t, html, 1300, 900)
	header := func(name string) string {
		return `[...document.querySelectorAll("#table th")].find((th) => th.textContent === "` + name + `")`
	}
	first := cells(b, "BYTES")
	b.Ask(header("OPERATOR") + ".firstChild.focus()")
	b.Keys(kb.Enter)
	if sort := b.Ask(header("OPERATOR") + ".ariaSort"); sort != "ascending" {
		t.Errorf("sorted %s", sort)
	}
	if all := cells(b, "OPERATOR"); !slices.IsSorted(all) {
		t.Errorf("%q", all)
	}
	b.Keys(kb.Enter) // the focus stays
	b.Wants("the other way", b.Ask(header("OPERATOR")+".ariaSort"), "descending")
	all := cells(b, "OPERATOR")
	slices.Reverse(all)
	if !slices.IsSorted(all) {
		t.Errorf("%q", all)
	}
	b.Wants("the address", b.Ask("location.hash"), "sort=-operator")
	two := browsertest.Open(t, "file://"+b.Ask("location.pathname")+b.Ask("location.hash"), 1300, 900)
	two.Until("document.documentElement.dataset.ready")
	two.Wants("brought back", two.Ask(header("OPERATOR")+".ariaSort"), "descending")
	b.Ask(header("BYTES") + ".firstChild.click()")
	if got := cells(b, "BYTES"); !slices.Equal(got, first) {
		t.Errorf("by bytes: %q, at first %q", got, first)
	}
	b.Quiet()
}

// A path to a module is there in full, and the frames of a stack's row tell it from others.
func TestLongNames(t *testing.T) {
	html, _, _ := written(t, "../../../test/recordings/profiler.gmt", whole)
	b := open(t, html, 1300, 900)
	if got := b.Ask(`[...document.querySelectorAll("#table td")].filter((td) => td.scrollWidth > td.clientWidth).map((td) => td.textContent)`); got != "" {
		t.Errorf("cut are %s", got)
	}
	if modules := cells(b, "MODULE"); !slices.Contains(modules, "GPT2LMHeadModel/GPT2Model/GPT2Block/GPT2MLP/NewGELUActivation") {
		t.Errorf("%q", modules)
	}
	stacks := map[string]bool{}
	for i, size := range cells(b, "BYTES") {
		if size == "24.0 MiB" {
			stacks[cells(b, "STACK")[i]] = true
		}
	}
	if len(stacks) < 3 {
		t.Errorf("stacks of 24 MiB: %q", slices.Collect(maps.Keys(stacks)))
	}
	b.Quiet()
}

// A process can be chosen where there are several: what is shown is its own, and so is the peak.
func TestProcess(t *testing.T) {
	html, p, _ := written(t, "../../../test/recordings/fsdp.gmt", whole)
	b := open(t, html, 1300, 900)
	totals := func(process string) (most int64) {
		sum := int64(0)
		for _, x := range p.instants {
			for _, d := range x.by {
				if p.meta.Places[p.meta.Rows.Place[d.row]].Name == "GPU 1" && (process == "" || p.text(p.meta.Rows.Process[d.row]) == process) {
					sum += d.bytes
				}
			}
			most = max(most, sum)
		}
		return most
	}
	b.Ask("[...document.querySelectorAll('[role=tab]')].find((e) => e.textContent.startsWith('GPU 1')).click()")
	for _, process := range []string{"python3 (1129)", "python3 (1130)", ""} {
		set(b, "process", process)
		b.Click("peak")
		b.Wants("the peak of "+process, b.Text("here"), exact(totals(process)))
		b.Wants("its name", b.Text("moment"), "the peak")
		set(b, "group", "process") // all figures are of what is shown
		b.Wants("the tab", b.Ask("document.querySelector('[role=tab][aria-selected=true]').textContent"), "peak "+bytefmt.Format(totals(process)))
		if legend := b.Text("legend"); strings.HasPrefix(legend, process+" ≤ "+bytefmt.Format(totals(process))) != (process != "") {
			t.Errorf("the legend of %q: %s", process, legend)
		}
		if in := strings.Contains(b.Ask("decodeURIComponent(location.hash)"), "process=python3+("); in != (process != "") {
			t.Errorf("the address with %q: %s", process, b.Ask("location.hash"))
		}
	}
	one, _, _ := written(t, "../../../test/recordings/profiler.gmt", whole)
	if open(t, one, 1300, 900).Ask("document.getElementById('process').hidden") != "true" {
		t.Error("one process can be chosen")
	}
	b.Quiet()
}

// Frames of compiled code are shown where there are no others, or if they are asked for. The
// graph is as wide with them as without.
func TestNativeFrames(t *testing.T) {
	html, _, _ := written(t, "../../../test/recordings/profiler.gmt", whole)
	b := open(t, html, 1300, 900)
	set(b, "filter", "empty_strided")
	b.Ask("document.getElementById('peak').click()")
	flame := "document.getElementById('flame')."
	top := func() string { return b.Ask(flame + "querySelector('.f').ariaLabel") }
	without := top()
	b.Wants("Python's", b.Ask(flame+"textContent"), "torch_profiled.py")
	if strings.Contains(b.Ask(flame+"textContent"), "at::_ops") {
		t.Error("native frames are there")
	}
	b.Ask("document.querySelector('#table summary').click()")
	b.Until("/and [0-9]+ native frames/.test(document.querySelector('#table ol').textContent)")
	b.Click("native")
	b.Wants("native frames", b.Ask(flame+"textContent"), "at::_ops")
	if with := top(); with != without {
		t.Errorf("%q with native frames, %q without", with, without)
	}
	b.Ask("document.querySelector('#table summary').click()")
	b.Until("document.querySelector('#table ol').textContent.includes('at::')")
	b.Wants("the address", b.Ask("location.hash"), "native=1")
	b.Quiet()
}

// Without native frames, a stack that has no others begins with what people know: the backward
// pass, a library's function, the program's own. Colours are explained, where they say something.
func TestFlameRoots(t *testing.T) {
	for name, want := range map[string][]string{
		"profiler":     {"<module> torch_profiled.py:118", "backward pass"},
		"torch_native": {"<module> torch_train.py:78", "backward pass"},
		"fsdp":         {"<module> fsdp.py:47", "backward pass", "p2pRecvProxySetup"},
		"jax":          {"<module> jax_train.py:27", "stream_executor::gpu::CudaExecutor::Allocate"},
	} {
		html, _, _ := written(t, "../../../test/recordings/"+name+".gmt", whole)
		b := open(t, html, 1300, 900)
		roots := b.Ask(`[...document.querySelectorAll("#flame .f")].filter((e) => e.style.top === "0px").map((e) => e.ariaLabel).join("|")`)
		b.Wants(name, roots, want...)
		if strings.Contains(roots, "+0x") || strings.Contains(roots, "_start") {
			t.Errorf("%s begins with %s", name, roots)
		}
		b.Wants("colours", b.Text("flamekey"), "Python", "compiled code", "CUDA's function")
		b.Click("native")
		b.Wants("native", b.Ask("document.getElementById('flame').textContent"), "+0x")
		b.Quiet()
	}
}

// What the mouse is on is told beside it.
func TestTips(t *testing.T) {
	html, _, _ := written(t, "../../../test/recordings/profiler.gmt", whole)
	b := open(t, html, 1300, 1800)
	for id, want := range map[string][]string{"flame": {" bytes", "<module>", "torch_profiled.py"}, "map": {" at 0x", "python3 (429)"}} {
		at := b.Box("#"+id)(0.3, 0.03)
		b.Run(chromedp.MouseEvent(chromedp.MouseMoved, at.X, at.Y))
		b.Run(chromedp.MouseEvent(chromedp.MouseMoved, at.X+2, at.Y))
		b.Until("!document.getElementById('tip').hidden")
		b.Wants(id, b.Text("tip"), want...)
		if b.Ask(fmt.Sprintf("(() => { const r = document.getElementById('tip').getBoundingClientRect(); return Math.abs(r.left - %v) < 40 && r.top < %v + 40 && r.bottom > %v - 40; })()", at.X, at.Y, at.Y)) != "true" {
			t.Errorf("what is told of %s is elsewhere", id)
		}
	}
	b.Quiet()
}
