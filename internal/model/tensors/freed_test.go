package tensors

import (
	"maps"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
)

func freesAt(stack uint64, e *event.Event) *event.Event {
	e.Stack = stack
	return e
}

func freed(l *Ledger) map[Freer]Freed {
	out := map[Freer]Freed{}
	l.Freed(func(_ event.Process, by Freer, what Freed) bool {
		out[by] = what
		return true
	})
	return out
}

// Who freed what is counted for each stack that made it, as far as frees have stacks.
func TestFreed(t *testing.T) {
	l := New(ledger.Options{})
	for _, e := range []*event.Event{
		makes(1, 10, 0x1000, 1), makes(1, 11, 0x2000, 1), makes(1, 12, 0x3000, 2), makes(1, 13, 0x4000, 1), makes(1, 14, 0x5000, 2),
		freesAt(7, frees(1, 20, 0x1000)), freesAt(7, frees(2, 21, 0x2000)), freesAt(7, frees(1, 22, 0x3000)), freesAt(8, frees(1, 23, 0x4000)),
		frees(1, 24, 0x5000),             // without a stack
		freesAt(9, frees(1, 25, 0x9000)), // of what was not seen made
		makes(1, 30, 0x1000, 1),          // and one that ends by being replaced
		makes(1, 31, 0x1000, 3),          //
		freesAt(9, frees(1, 29, 0x1000)), // older than what is there
	} {
		l.Apply(e)
	}
	want := map[Freer]Freed{{Stack: 1, By: 7}: {2, 1024}, {Stack: 1, By: 8}: {1, 512}, {Stack: 2, By: 7}: {1, 512}}
	if got := freed(l); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	l.Forget(proc)
	if got := freed(l); len(got) != 0 {
		t.Errorf("forgotten: %v", got)
	}
}

// Where there are too many, those that freed least go, and are counted.
func TestFreedIsBounded(t *testing.T) {
	l := New(ledger.Options{})
	free := func(stack uint64) {
		l.Apply(makes(1, 10, 0x1000, 1))
		l.Apply(freesAt(stack, frees(1, 10, 0x1000)))
	}
	for range 3 {
		free(1)
	}
	for i := range uint64(maxFreed) {
		free(i + 1)
	}
	if got := freed(l); len(got) != maxFreed || got[Freer{Stack: 1, By: 1}].Objects != 4 {
		t.Fatalf("%d pairs, %v", len(got), got[Freer{Stack: 1, By: 1}])
	}
	free(maxFreed + 1)
	got := freed(l)
	kept := int64(0)
	for _, f := range got {
		kept += f.Objects
	}
	for _, c := range l.Loss() {
		if c.Name == "tensor_freed_by_full" && int64(c.Value)+kept != maxFreed+4 {
			t.Errorf("%d lost and %d kept of %d", c.Value, kept, maxFreed+4)
		}
	}
	if len(got) != maxFreed/2+1 || got[Freer{Stack: 1, By: 1}].Objects != 4 || got[Freer{Stack: 1, By: maxFreed + 1}].Objects != 1 {
		t.Errorf("%d pairs, %v", len(got), got[Freer{Stack: 1, By: 1}])
	}
	// Another process does not make it more.
	for i := range uint64(maxFreed) {
		one, end := makes(1, 10, 0x1000, 1), freesAt(i+1, frees(1, 10, 0x1000))
		one.Proc.PID, end.Proc.PID = 8, 8
		l.Apply(one)
		l.Apply(end)
		if got := len(l.freers.processes[one.Proc]) + len(l.freers.processes[proc]); got != l.freers.n || got > maxFreed {
			t.Fatalf("%d pairs, %d counted", got, l.freers.n)
		}
	}
	l.Forget(event.Process{PID: 8, Start: proc.Start})
	if l.freers.n != len(l.freers.processes[proc]) {
		t.Errorf("%d pairs are counted, there are %d", l.freers.n, len(l.freers.processes[proc]))
	}
}
