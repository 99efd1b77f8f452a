package timeline

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/output/table"
	"github.com/gpumemtrace/gpumemtrace/internal/whatif"
)

const allocatorRecordings = "../../../test/recordings/allocator/"

// The outline of a run is the curve that its own page has, up to its thinning.
func TestOutlineOfItself(t *testing.T) {
	for _, path := range append(recordings(t), allocatorRecordings+"bert.gmt") {
		outlines, err := Outlines(path, "itself", replay.Options{At: replay.End})
		if err != nil {
			t.Fatal(err)
		}
		_, p, _ := written(t, path, Options{Play: replay.Options{At: replay.End}, Outlines: outlines})
		if len(p.meta.Outlines) != len(outlines) || len(outlines) == 0 {
			t.Errorf("%s: %d of %d outlines", filepath.Base(path), len(p.meta.Outlines), len(outlines))
		}
		for _, o := range p.meta.Outlines {
			totals, at := p.totals(o.Place), map[uint64]int64{}
			for i, x := range p.instants {
				at[x.time] = totals[i]
			}
			if got, want := slices.Max(o.Bytes), slices.Max(totals); got != want {
				t.Errorf("%s: the outline's peak is %d, the page's %d", filepath.Base(path), got, want)
			}
			if o.End != p.meta.End {
				t.Errorf("%s: it ends at %d, the page at %d", filepath.Base(path), o.End, p.meta.End)
			}
			for i, time := range o.Times {
				if at[time] != o.Bytes[i] {
					t.Errorf("%s: %d at %d, on the page %d", filepath.Base(path), o.Bytes[i], time, at[time])
				}
			}
		}
	}
}

// A prediction under the run's own settings is the run's own curve: what the page adds to it
// is what the GPU held besides.
func TestPredictedOutline(t *testing.T) {
	path := allocatorRecordings + "bert.gmt"
	runs, err := whatif.Collect(path)
	if err != nil || len(runs) != 1 {
		t.Fatal(len(runs), err)
	}
	x := runs[0]
	var outlines []Outline
	for _, text := range []string{"expandable_segments:False", "expandable_segments:True"} {
		s, err := whatif.ParseSetting(text)
		if err != nil {
			t.Fatal(err)
		}
		o := Outline{Name: "with " + text, Process: x.Process, Device: x.Device}
		x.Follow(s, o.Curve.Add)
		outlines = append(outlines, o)
	}
	html, p, _ := written(t, path, Options{Play: replay.Options{At: replay.End}, Outlines: outlines})
	if len(p.meta.Outlines) != 2 {
		t.Fatal(p.meta.Outlines)
	}
	b := open(t, html, 1280, 800)
	b.Picture("outline")
	legend := strings.Split(b.Ask("[...document.querySelectorAll('#legend li')].map((e) => e.textContent).join('\\n')"), "\n")
	tab := b.Ask("document.querySelector('#places [aria-selected=true] span').textContent")
	peak := strings.TrimPrefix(tab, "peak ")
	if want := "with expandable_segments:False ≤ " + peak; legend[0] != want {
		t.Errorf("the legend has %q, want %q", legend[0], want)
	}
	if want := "with expandable_segments:True ≤ 4.19 GiB"; legend[1] != want {
		t.Errorf("the legend has %q, want %q", legend[1], want)
	}
	set(b, "filter", "attention")
	b.Until("!document.getElementById('legend').textContent.includes('with expandable')")
	b.Quiet()
}

// The page of a comparison names both runs, and lists their differences, as text.
func TestComparison(t *testing.T) {
	c := &Comparison{
		Title: "b.gmt, compared with a.gmt", Passage: Passage{
			Title: "Differences", Says: []string{"1 KiB more memory on GPUs"},
			Tables: []table.Listing{{Title: "Lines of the program", Columns: []string{"CHANGE", "BEFORE", "LINE"}, Cells: [][]string{{"+1 KiB", "2 KiB", "<b class=hacked>train.py:7"}}, Numbers: 2}},
		},
	}
	html, _, _ := written(t, allocatorRecordings+"bert.gmt", Options{Play: replay.Options{At: replay.End}, Compared: c})
	b := open(t, html, 390, 844)
	b.Wants("the title", b.Text("title"), "GPU memory of b.gmt, compared with a.gmt")
	b.Wants("the differences", b.Text("compared"), "1 KiB more memory on GPUs", "Lines of the program", "CHANGE", "+1 KiB", "<b class=hacked>train.py:7")
	if got := b.Ask("document.documentElement.scrollWidth <= innerWidth && document.querySelectorAll('.hacked').length"); got != "0" {
		t.Error(got)
	}
	b.Quiet()
	if html, _, _ = written(t, allocatorRecordings+"bert.gmt", whole); open(t, html, 390, 844).Ask("document.getElementById('compared').checkVisibility()") != "false" {
		t.Error("a page of one run compares it")
	}
}
