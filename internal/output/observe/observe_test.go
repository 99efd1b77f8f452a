package observe_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
	"github.com/gpumemtrace/gpumemtrace/internal/output/observe"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
)

// An output hears of each change once, of the end of a process whose PID another process has,
// and at the end of what every call site was.
func TestObserver(t *testing.T) {
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
	var got []string
	note := func(format string, args ...any) { got = append(got, fmt.Sprintf(format, args...)) }
	var o *observe.Observer[uint64]
	o = observe.New(stacks.NativePython, observe.Hooks[uint64]{
		Meet:  func(site *ledger.Site) (uint64, bool) { return site.Stack, site.Stack != 3 },
		Count: func(x *observe.Site[uint64]) { note("%d: stack %d holds %d", o.Now, x.Own, x.InuseBytes) },
		Drop:  func(x *observe.Site[uint64]) { note("%d: drop stack %d", o.Now, x.Own) },
		Gone:  func(id event.Process) { note("%d: process %d is gone", o.Now, id.Start/event.StartUnit) },
		Name:  func(stack uint64, x snapshot.Sample) { note("stack %d is of %s", stack, x.Process) },
	})
	s, err := replay.Play(path, replay.Options{At: replay.End, Before: o.Before, Changed: o.Hear})
	if err != nil {
		t.Fatal(err)
	}
	o.Finish(s)
	o.NameSites()
	want := []string{
		"10: stack 1 holds 100", "20: stack 1 holds 111",
		"30: process 1 is gone", "30: drop stack 1", "30: stack 2 holds 50",
		"40: process 2 is gone", "40: drop stack 2",
		"stack 1 is of one", "stack 2 is of two",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if o.Begin == 0 || o.Now != 50 || slices.ContainsFunc([]event.Process{first, second}, o.Holds) {
		t.Errorf("from %d to %d", o.Begin, o.Now)
	}
}
