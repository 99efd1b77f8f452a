package windows

import (
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/steps"
)

var prog = event.Process{PID: 17, Start: 1}

// Sites of the peak and those that made something in the last windows stay, however many there are.
func TestShrinkKeepsPeak(t *testing.T) {
	d := &device{sites: map[uint64]*site{
		1: {peak: 100, idle: 9},
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
