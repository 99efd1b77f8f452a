package timeline

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
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
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
	n := &noter{}
	o := newObserver(stacks.NativePython, n)
	n.observer = o
	s, err := replay.Play(path, replay.Options{At: replay.End, Before: o.observe, Changed: o.hear})
	if err != nil {
		t.Fatal(err)
	}
	o.finish(s)
	o.nameSites()
	want := []string{
		"10: stack 1 holds 100", "20: stack 1 holds 111",
		"30: process 1 is gone", "30: drop stack 1", "30: stack 2 holds 50",
		"40: process 2 is gone", "40: drop stack 2",
		"stack 1 is of one", "stack 2 is of two",
	}
	if d := cmp.Diff(want, n.got); d != "" {
		t.Error(d)
	}
	if o.Begin == 0 || o.Now != 50 || slices.ContainsFunc([]event.Process{first, second}, o.Holds) {
		t.Errorf("from %d to %d", o.Begin, o.Now)
	}
}

// A noter writes down what it hears. Call sites are known by their stack.
type noter struct {
	*observer
	got []string
}

func (n *noter) note(format string, args ...any) { n.got = append(n.got, fmt.Sprintf(format, args...)) }

func (n *noter) meet(at *ledger.Site) (held, bool) { return held{leaf: int32(at.Stack)}, at.Stack != 3 }
func (n *noter) count(x *site)                     { n.note("%d: stack %d holds %d", n.Now, x.own.leaf, x.InuseBytes) }
func (n *noter) drop(x *site)                      { n.note("%d: drop stack %d", n.Now, x.own.leaf) }
func (n *noter) flush()                            {}
func (n *noter) leave(event.Process, string)       {}
func (n *noter) gone(id event.Process) {
	n.note("%d: process %d is gone", n.Now, id.Start/event.StartUnit)
}
func (n *noter) failed(*state.Failure)           {}
func (n *noter) name(of held, x snapshot.Sample) { n.note("stack %d is of %s", of.leaf, x.Process) }
