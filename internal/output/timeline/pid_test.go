package timeline

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
)

// A process whose PID another process has, has ended.
func TestSamePID(t *testing.T) {
	boot := time.Unix(1_700_000_000, 0).UTC()
	first, second := event.Process{PID: 7, Start: event.StartUnit}, event.Process{PID: 7, Start: 2 * event.StartUnit}
	alloc := func(id event.Process, at, stack, size uint64) *event.Event {
		return &event.Event{Op: event.OpAlloc, Kind: event.KindDevice, Time: at, Proc: id, TID: 7, API: 1, Stack: stack, Addr: at << 20, Size: size}
	}
	path := recordtest.File(t, &record.Trace{Version: "1", Boot: boot, Start: boot, APIs: []string{"", "cuMemAlloc_v2"}},
		&record.Process{Process: first, Target: true, FromStart: true, Name: "one"},
		alloc(first, 10, 1, 100), alloc(first, 20, 1, 11), &record.Moment{Time: 25, Drained: true},
		alloc(second, 30, 2, 50), &record.Process{Process: second, Target: true, FromStart: true, Name: "two"},
		&event.Event{Op: event.OpExit, Proc: second, TID: 7, Time: 40, Name: "two"}, &record.Moment{Time: 50, Drained: true})
	_, p, _ := written(t, path, whole)
	held := map[string]int64{}
	var got []string
	for _, x := range p.instants {
		for _, d := range x.by {
			name := p.meta.Strings[p.meta.Rows.Process[d.row]]
			held[name] += d.bytes
			got = append(got, fmt.Sprintf("%d: %s holds %d", x.time, name, held[name]))
		}
	}
	want := []string{"10: one (7) holds 100", "20: one (7) holds 111", "30: one (7) holds 0", "30: two (7) holds 50", "40: two (7) holds 0"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
