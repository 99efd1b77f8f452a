package windows

import (
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/steps"
)

var prog = event.Process{PID: 17, Start: 1}

// Sites of the peak and those that made something in the last windows stay, however many there are.
func TestShrinkKeepsPeak(t *testing.T) {
	d := &device{sites: map[uint64]*site{
		1: {Values: snapshot.Values{PeakBytes: 100}, idle: 9},
		2: {idle: 9},
		3: {idle: 2},
	}}
	d.shrink()
	if d.sites[1] == nil || d.sites[2] != nil || d.sites[3] == nil {
		t.Errorf("%v stay", d.sites)
	}
}

// The bound of live tensors is of those of the open window: a window's end makes room, as does the
// end of a process.
func TestLiveAreOfOpenWindow(t *testing.T) {
	w := record.Window{Length: 100, Every: 1000, Open: true}
	for name, end := range map[string]func(a *Account){
		"window":  func(a *Account) { w := w; w.Open = false; a.Set(w, 20) },
		"exit":    func(a *Account) { a.Exit(prog, 20) },
		"exec":    func(a *Account) { a.ReplaceImage(prog, 20) },
		"forgets": func(a *Account) { a.Forget(prog) },
	} {
		a := New(steps.New(func(uint64) []*record.Place { return nil }))
		a.Set(w, 5)
		for i := range uint64(3) {
			a.Apply(&event.Event{Op: event.OpTensorAlloc, Proc: prog, TID: prog.PID, Time: 10, Addr: i << 20, Size: 8, Stack: 1, Handle: event.NoTotal, Part: event.NoTotal})
		}
		if a.live != 3 {
			t.Errorf("%s: %d tensors are live before it", name, a.live)
		}
		if end(a); a.live != 0 {
			t.Errorf("%s: %d tensors are live after it", name, a.live)
		}
	}
}

// What counts from a moment inside a window is one window that began then, whose tensors from before
// it are in no row.
func TestResetInWindow(t *testing.T) {
	a := New(steps.New(func(uint64) []*record.Place { return []*record.Place{} }))
	a.Set(record.Window{Length: 100, Every: 1000, Open: true}, 5)
	made := func(at, stack, total uint64) {
		a.Apply(&event.Event{Op: event.OpTensorAlloc, Proc: prog, TID: prog.PID, Time: at, Addr: at << 20, Size: 8, Stack: stack, Handle: total, Part: event.NoTotal})
	}
	made(10, 1, 1008)
	a.Reset(20)
	made(30, 2, 1016)
	a.Set(record.Window{Length: 100, Every: 1000}, 45)
	r := a.Reports(50, true)
	if a.Count != 1 || a.Time != 25 || len(r) != 1 || r[0].AllocObjects != 1 || r[0].Peak != 1016 || r[0].Before != 1008 || len(r[0].Stacks) != 1 {
		t.Errorf("%d windows, %d ns, %+v", a.Count, a.Time, r)
	}
}
