package tensors

import (
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
)

var proc = event.Process{PID: 7, Start: event.StartUnit}

func makes(thread uint32, t, addr, stack uint64) *event.Event {
	return &event.Event{Op: event.OpTensorAlloc, Kind: event.KindTensor, Proc: proc, TID: thread, Time: t, Addr: addr, Size: 512,
		Stack: stack, Handle: event.NoTotal, Part: event.NoTotal}
}

func frees(thread uint32, t, addr uint64) *event.Event {
	return &event.Event{Op: event.OpTensorFree, Proc: proc, TID: thread, Time: t, Addr: addr, Size: 512,
		Handle: event.NoTotal, Part: event.NoTotal}
}

func TestFate(t *testing.T) {
	l := New(ledger.Options{})
	for i, c := range []struct {
		events []*event.Event
		of     uint64
		want   Fate
	}{
		{nil, 1, Fate{}},
		{[]*event.Event{makes(1, 10, 0x1000, 1)}, 1, Fate{}},
		{[]*event.Event{frees(1, 11, 0x1000)}, 1, Fate{Stayed: 1}},
		{[]*event.Event{makes(1, 12, 0x1000, 1), frees(2, 13, 0x1000)}, 1, Fate{Stayed: 1, Crossed: 1}},
		// Another one was made in between, by this thread and not by that one.
		{[]*event.Event{makes(1, 14, 0x1000, 1), makes(1, 15, 0x2000, 2), makes(2, 16, 0x3000, 3), frees(1, 17, 0x1000)}, 1,
			Fate{Stayed: 2, Crossed: 1, After: 2}},
		// Another one of the same stack is another one.
		{[]*event.Event{makes(1, 18, 0x1000, 1), makes(1, 19, 0x4000, 1), frees(1, 20, 0x1000)}, 1, Fate{Stayed: 3, Crossed: 1, After: 1}},
		{[]*event.Event{frees(1, 21, 0x4000)}, 1, Fate{Stayed: 4, Crossed: 1}},
		// What ends without a free, or is freed without having been seen made.
		{[]*event.Event{makes(2, 22, 0x3000, 4), frees(2, 23, 0x9000)}, 3, Fate{}},
		// A free that is older than the tensor is not its own.
		{[]*event.Event{frees(2, 21, 0x3000)}, 4, Fate{}},
		{[]*event.Event{{Op: event.OpExit, Proc: proc, Time: 30}}, 1, Fate{Stayed: 4, Crossed: 1}},
	} {
		for _, e := range c.events {
			l.Apply(e)
		}
		if got := l.Fate(proc, c.of); got != c.want {
			t.Errorf("%d: %+v, want %+v", i, got, c.want)
		}
	}
	l.Release(proc)
	if got := l.Fate(proc, 1); got.Stayed != 4 {
		t.Errorf("released: %+v", got)
	}
	l.Forget(proc)
	if got := l.Fate(proc, 1); got != (Fate{}) {
		t.Errorf("forgotten: %+v", got)
	}
}

// Who made a tensor is known after a keyframe.
func TestFateAfterKeyframe(t *testing.T) {
	l, again := New(ledger.Options{}), New(ledger.Options{})
	l.Apply(makes(1, 10, 0x1000, 1))
	l.Apply(makes(1, 11, 0x2000, 1))
	copyFields(t, l.Visit, again.Visit)
	again.Apply(frees(1, 12, 0x1000))
	again.Apply(frees(2, 13, 0x2000))
	if got := again.Fate(proc, 1); got.Stayed != 1 || got.Crossed != 1 {
		t.Errorf("%+v", got)
	}
}

func TestFatesAreBounded(t *testing.T) {
	const sites, processes, stacks = 1000, 4, maxFates / 3
	l := New(ledger.Options{MaxSites: sites})
	var id event.Process
	for pid := range uint32(processes) {
		id = event.Process{PID: pid + 1, Start: 1}
		for i := range uint64(stacks) {
			made, freed := makes(uint32(i), 2*i+1, 0x1000, i+1), frees(uint32(i), 2*i+2, 0x1000)
			made.Proc, freed.Proc = id, id
			l.Apply(made)
			l.Apply(freed)
		}
		if threads := len(l.fates.processes[id].last); threads > maxThreads {
			t.Errorf("%d threads", threads)
		}
		l.Apply(&event.Event{Op: event.OpExit, Time: 3 * stacks, Proc: id})
	}
	kept := 0
	for _, p := range l.fates.processes {
		kept += len(p.byStack)
	}
	if kept > maxFates || kept != l.fates.n {
		t.Errorf("%d fates are kept, and %d counted", kept, l.fates.n)
	}
	for _, c := range l.Loss() {
		if c.Name == "tensor_fates_full" && c.Value != uint64(processes*stacks-kept) {
			t.Errorf("%d lost, want %d", c.Value, processes*stacks-kept)
		}
	}
	if got := l.Fate(id, stacks); got.Stayed != 1 {
		t.Errorf("the last one: %+v", got)
	}
	for pid := range uint32(processes) {
		l.Forget(event.Process{PID: pid + 1, Start: 1})
	}
	if l.fates.n != 0 {
		t.Errorf("%d fates of no process", l.fates.n)
	}
}
