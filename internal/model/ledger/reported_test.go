package ledger

import (
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// What is allocated between two reports adds up to all, though sites are folded into one
// and others come to be on a device that was not known before.
func TestUnreportedAddsUp(t *testing.T) {
	const stacks, every = 5000, 700
	l := New(Options{MaxSites: 100})
	id := event.Process{PID: 1, Start: event.StartUnit}
	var objects, bytes int64
	report := func() {
		for s := range l.Sites {
			n, b := s.Unreported()
			if n < 0 || b < 0 {
				t.Fatalf("%d objects, %d bytes of %+v", n, b, s)
			}
			objects, bytes = objects+n, bytes+b
		}
		l.MarkReported()
	}
	for i := uint64(1); i <= stacks; i++ {
		l.Apply(&event.Event{Op: event.OpAlloc, Kind: event.KindDevice, Proc: id, Time: 3 * i, Addr: i << 12, Size: 64, Stack: i % 300, API: 1, Device: event.NoDevice, Ctx: 1 + i%7})
		l.Apply(&event.Event{Op: event.OpContextSeen, Proc: id, Time: 3*i + 1, Ctx: 1 + i%5, Device: int32(i % 5)})
		l.Apply(&event.Event{Op: event.OpFree, Proc: id, Time: 3*i + 2, Addr: i << 12})
		if i%every == 0 {
			report()
		}
	}
	report()
	for s := range l.Sites {
		if n, b := s.Unreported(); n != 0 || b != 0 {
			t.Errorf("after a report %d objects, %d bytes of %+v", n, b, s)
		}
	}
	if lossOf(l, "sites_folded") == 0 {
		t.Error("no site was folded")
	}
	if objects != stacks || bytes != stacks*64 {
		t.Errorf("%d objects, %d bytes", objects, bytes)
	}
}
