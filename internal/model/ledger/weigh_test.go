package ledger

import (
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// An allocation counts at its site for what it weighs, with a row and without, and takes
// as much away when it ends. Its row has its own size.
func TestWeigh(t *testing.T) {
	l := New(Options{MaxLive: 1, Weigh: func(size uint64) Weight { return Weight{7, 3 * int64(size)} }})
	proc := event.Process{PID: 1}
	at := func(op event.Op, addr uint64) {
		l.Apply(&event.Event{Op: op, Kind: event.KindTensor, Proc: proc, Time: addr, Addr: addr, Size: 100, Stack: 1})
	}
	sum := func() (w Weight, all Weight) {
		for s := range l.Sites {
			w.Objects, w.Bytes = w.Objects+s.InuseObjects, w.Bytes+s.InuseBytes
			all.Objects, all.Bytes = all.Objects+s.AllocObjects, all.Bytes+s.AllocBytes
		}
		return w, all
	}
	at(event.OpAlloc, 0x1000)
	at(event.OpAlloc, 0x2000) // beyond MaxLive
	if w, all := sum(); w != (Weight{14, 600}) || all != w {
		t.Errorf("%+v in use of %+v", w, all)
	}
	for a := range l.Live {
		if a.Size != 100 {
			t.Errorf("a row of %d bytes", a.Size)
		}
	}
	at(event.OpFree, 0x1000)
	at(event.OpFree, 0x2000)
	if w, all := sum(); w != (Weight{}) || all != (Weight{14, 600}) {
		t.Errorf("%+v in use of %+v after the end", w, all)
	}
}
