package timeline

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
)

// readingAt tells what NVML says processes hold on each of two GPUs, in MiB.
func readingAt(after time.Duration, uses map[event.Process][2]int64) *record.Reading {
	r := &record.Reading{Begin: at(after), Time: at(after)}
	ids := slices.SortedFunc(maps.Keys(uses), event.Process.Compare)
	for i, label := range []string{"0", "1"} {
		r.Devices = append(r.Devices, record.Device{UUID: "GPU-" + label, Label: label, Instance: -1, Total: 80 << 30, MemoryKnown: true, Listed: true})
		for _, id := range ids {
			mib := uses[id]
			if mib[i] > 0 {
				r.Devices[i].Processes = append(r.Devices[i].Processes, snapshot.GPUProcess{PID: int(id.PID), Bytes: mib[i] << 20, Known: true})
				r.Uses = append(r.Uses, record.Use{Process: id, Device: i, Bytes: mib[i] << 20, Known: true})
			}
			r.Ordinals = append(r.Ordinals, record.Ordinal{Process: id, Ordinal: int32(i), Device: i})
		}
	}
	return r
}

// What a process held when it was attached to is there from the beginning, under its name,
// though NVML's figures come a moment later; what came to be between two of them is not.
func TestLateAttach(t *testing.T) {
	const ms = time.Millisecond
	fresh := event.Process{PID: 8, Start: 2 * event.StartUnit}
	trace := traceOf()
	trace.NVML, trace.Initial = true, true
	path := recordtest.File(t, trace,
		&record.Process{Process: proc, Target: true, Name: "prog"}, momentAt(0), stack(proc, 1, "/x/train.py", "train"),
		alloc(proc, 100*ms, 1, 1<<40, 100<<20), momentAt(150*ms),
		readingAt(200*ms, map[event.Process][2]int64{proc: {1100, 0}}), momentAt(210*ms),
		&record.Process{Process: fresh, Target: true, FromStart: true, Name: "fresh"},
		alloc(proc, 300*ms, 1, 2<<40, 200<<20), alloc(fresh, 310*ms, 1, 1<<40, 30<<20), momentAt(390*ms),
		readingAt(400*ms, map[event.Process][2]int64{proc: {1300, 64}, fresh: {30, 0}}), momentAt(410*ms),
		free(proc, 450*ms, 1<<40), momentAt(500*ms))
	html, p, _ := written(t, path, whole)
	if first := p.instants[0]; first.time != 0 {
		t.Fatalf("it begins at %d", first.time)
	}
	place := func(name string) int {
		return slices.IndexFunc(p.meta.Places, func(x placeMeta) bool { return x.Name == name })
	}
	for _, x := range []struct {
		after       time.Duration
		prog, other int64 // MiB on GPU 0, and on GPU 1
	}{{0, 1000, 0}, {99 * ms, 1000, 0}, {101 * ms, 1100, 0}, {250 * ms, 1100, 0}, {320 * ms, 1330, 0}, {399 * ms, 1330, 0}, {415 * ms, 1330, 64}, {460 * ms, 1230, 64}} {
		held := p.at(uint64(x.after))
		var on [2]int64
		for row, bytes := range held[len(held)-1] {
			for i, name := range []string{"GPU 0", "GPU 1"} {
				if p.meta.Rows.Place[row] == place(name) {
					on[i] += bytes
				}
			}
		}
		if want := [2]int64{x.prog << 20, x.other << 20}; on != want {
			t.Errorf("at %v: %d bytes, want %d", x.after, on, want)
		}
	}
	for row, title := range p.meta.Rows.Title {
		if bytes := p.at(0)[1][row]; bytes != 0 && (p.text(title) != state.LineBefore || bytes != 1000<<20 || p.text(p.meta.Rows.Process[row]) != "prog (7)") {
			t.Errorf("%d bytes of %s at the beginning", bytes, p.text(title))
		}
	}
	b := open(t, html, 900, 900)
	b.TabTo("chart")
	b.Keys(kb.Home)
	b.Wants("the beginning", b.Text("here"), "0.000000 s", exact(1000<<20), state.LineBefore)
	b.Quiet()
}
