package timeline

import (
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
)

// What the driver took for a call that has not returned is no rounding: that is a
// few of the driver's pieces.
func TestCallsUnderWay(t *testing.T) {
	for _, path := range recordings(t) {
		_, p, _ := written(t, path, whole)
		held, most, under := make([]int64, len(p.meta.Rows.Place)), int64(0), int64(0)
		cause := func(row int) string { return p.text(p.meta.Rows.Cause[row]) }
		for _, x := range p.instants {
			for _, d := range x.by {
				held[d.row] += d.bytes
				switch cause(d.row) {
				case "driver rounding":
					most = max(most, held[d.row], -held[d.row]/4)
				case "calls under way":
					under = max(under, held[d.row])
				}
			}
		}
		if most > 8<<20 { // of arrays too
			t.Errorf("%s: %d bytes of rounding", filepath.Base(path), most)
		}
		if under == 0 && !strings.HasSuffix(path, "video.gmt") {
			t.Errorf("%s: no call is under way", filepath.Base(path))
		}
		for row, bytes := range held {
			if cause(row) == "calls under way" && bytes != 0 {
				t.Errorf("%s: %d bytes of calls at the end", filepath.Base(path), bytes)
			}
		}
	}
}

// The most that a group held is no more than the most of all, whatever changes together; or
// where the driver's figure is less than what was seen, it says that it is the group's own.
func TestLegendFigures(t *testing.T) {
	const ms = time.Millisecond
	long := filepath.Join(t.TempDir(), "long.gmt")
	training(t, long, 20_000)
	trace := traceOf()
	trace.NVML, trace.Initial = true, true
	before := readingAt(50*ms, map[event.Process][2]int64{proc: {1, 0}}) // with it, the driver's part was more than nothing
	less := func(more ...record.Record) string {
		return recordtest.File(t, slices.Concat([]record.Record{trace, &record.Process{Process: proc, Target: true, FromStart: true, Name: "prog"}, momentAt(0), stack(proc, 1, "/x/train.py", "train")},
			more, []record.Record{alloc(proc, 100*ms, 1, 1<<40, 1300<<20), momentAt(150 * ms),
				readingAt(200*ms, map[event.Process][2]int64{proc: {1000, 0}}), momentAt(210 * ms),
				alloc(proc, 300*ms, 1, 2<<40, 200<<20), momentAt(500 * ms)})...)
	}
	for _, path := range []string{long, less(), less(before)} {
		legendFigures(t, path)
	}
}

func legendFigures(t *testing.T, path string) {
	html, p, _ := written(t, path, whole)
	b := open(t, html, 1300, 900)
	shown := b.Ask("document.querySelector('[role=tab][aria-selected=true] b').textContent")
	peak := slices.Max(p.totals(slices.IndexFunc(p.meta.Places, func(x placeMeta) bool { return x.Name == shown })))
	for _, by := range []string{"cause", "owner", "process", "stack"} {
		set(b, "group", by)
		titles := b.Ask("[...document.querySelectorAll('#legend button')].map((b) => b.textContent + ' | ' + b.title).join('\\n')")
		all := regexp.MustCompile(`(.*) \| .*It held most at [^:]+: ([0-9,]+) bytes`).FindAllStringSubmatch(titles, -1)
		if len(all) == 0 {
			t.Fatalf("by %s the legend says %q", by, titles)
		}
		for _, m := range all {
			if n, err := strconv.ParseInt(strings.ReplaceAll(m[2], ",", ""), 10, 64); err != nil || n <= 0 || n > peak != strings.Contains(m[1], "at its own highest") {
				t.Errorf("by %s: %d bytes of %d, %q, %v", by, n, peak, m[1], err)
			}
		}
	}
	b.Quiet()
}

// Between the lowest and the highest of a pixel the chart is paler, not black, and it says so.
func TestBand(t *testing.T) {
	path := filepath.Join(t.TempDir(), "long.gmt")
	training(t, path, 200_000)
	html, _, _ := written(t, path, whole)
	b := open(t, html, 1300, 900)
	const paler = "document.querySelector('#chart + p')"
	b.Wants("its name", b.Ask(paler+".innerText"), "between the lowest and the highest within one pixel")
	// Black is the outline alone: a pixel or two of each column.
	black, err := strconv.ParseFloat(b.Ask(`(() => {
		const c = document.querySelector("#chart canvas"), { data } = c.getContext("2d").getImageData(0, 0, c.width, c.height);
		let n = 0;
		for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 200 && data[i] < 70 && data[i + 1] < 70 && data[i + 2] < 70) n++;
		return n / c.width;
	})()`), 64)
	if err != nil || black > 6 {
		t.Errorf("%.1f black pixels a column, %v", black, err)
	}
	for range 20 {
		b.Click("in")
	}
	b.Wants("each change", b.Text("span"), "each drawn")
	b.Until(paler + ".hidden")
	b.Quiet()
}
