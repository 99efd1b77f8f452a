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
		a := New(steps.New(func(uint64) []*record.Place { return nil }), nil)
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
	a := New(steps.New(func(uint64) []*record.Place { return []*record.Place{} }), nil)
	a.Set(record.Window{Length: 100, Every: 1000, Open: true}, 5)
	made := func(at, stack, total uint64) {
		a.Apply(&event.Event{Op: event.OpTensorAlloc, Proc: prog, TID: prog.PID, Time: at, Addr: at << 20, Size: 8, Stack: stack, Handle: total, Part: event.NoTotal})
	}
	made(10, 1, 1008)
	a.Reset(20)
	made(30, 2, 1016)
	a.Set(record.Window{Length: 100, Every: 1000}, 45)
	r := a.Reports(50, true)
	if a.Count != 1 || a.Time != 25 || len(r) != 1 || r[0].Objects != 1 || r[0].Peak != 1016 || r[0].Before != 1008 || len(r[0].Rows) != 1 {
		t.Errorf("%d windows, %d ns, %+v", a.Count, a.Time, r)
	}
}

// A user whose processes want more stacks than there is room for takes none of another user's: of its
// own it keeps those that made most, and what is held is right all the same.
func TestShares(t *testing.T) {
	greedy, other := [3]event.Process{{PID: 1, Start: 1}, {PID: 2, Start: 1}, {PID: 3, Start: 1}}, event.Process{PID: 4, Start: 1}
	user := func(id event.Process) (uint32, bool) {
		if id == other {
			return 2000, true
		}
		return 1000, true
	}
	const room, wanted, size = 90, 50, 8
	a := newAccount(steps.New(func(uint64) []*record.Place { return []*record.Place{} }), user, room)
	a.Set(record.Window{Length: 100, Every: 1000, Open: true}, 5)
	made := func(id event.Process, n uint64) {
		for i := range n {
			a.Apply(&event.Event{Op: event.OpTensorAlloc, Proc: id, TID: id.PID, Time: 10, Addr: (i + 1) << 20, Size: size, Stack: i + 1, Handle: (i + 1) * size, Part: event.NoTotal})
		}
	}
	for _, id := range greedy {
		made(id, wanted)
	}
	made(other, 20)
	for i := range uint64(wanted) {
		a.Apply(&event.Event{Op: event.OpTensorFree, Proc: greedy[0], TID: greedy[0].PID, Time: 20, Addr: (i + 1) << 20, Size: size, Stack: i + 1, Handle: (wanted - i - 1) * size, Part: event.NoTotal})
	}
	a.Set(record.Window{Length: 100, Every: 1000}, 45)
	rows, lost := map[event.Process]int{}, map[event.Process]uint64{}
	for _, r := range a.Reports(50, true) {
		for _, row := range r.Rows {
			if rows[r.Process]++; row.Peak < 0 || row.Peak > size {
				t.Errorf("stack %d of process %d has %d bytes at the peak", row.Stack, r.Process.PID, row.Peak)
			}
		}
		want := int64(wanted * size)
		if r.Process == other {
			want = 20 * size
		}
		if r.Peak != want {
			t.Errorf("process %d: peak of %d bytes, want %d", r.Process.PID, r.Peak, want)
		}
	}
	for x := range a.Shortages {
		lost[x.Process] = x.Lost
	}
	if rows[other] != 20 || lost[other] != 0 {
		t.Errorf("the other user's process has %d rows, want 20, and lost %d", rows[other], lost[other])
	}
	total := 0
	for _, id := range greedy {
		total += rows[id]
		if lost[id] == 0 || rows[id] < 20 || rows[id]+int(lost[id]) < wanted {
			t.Errorf("process %d has %d rows and lost %d, want a third of the rest of %d", id.PID, rows[id], lost[id], room)
		}
	}
	if total+20 > room {
		t.Errorf("%d rows, want %d at most", total+20, room)
	}
}
