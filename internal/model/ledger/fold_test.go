package ledger

import (
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// A process that lives long and calls from ever new stacks: the newest has a
// site of its own, so has each that holds memory, and the sums are exact.
func TestNewStacksFindRoom(t *testing.T) {
	const sites, stacks, size = 1000, 80_000, 64
	l := New(Options{MaxSites: sites})
	id := event.Process{PID: 1, Start: event.StartUnit}
	kept := map[uint64]bool{}
	for i := uint64(1); i <= stacks; i++ {
		l.Apply(&event.Event{Op: event.OpAlloc, Kind: event.KindDevice, Proc: id, Time: 2 * i, Addr: i << 12, Size: size, Stack: i, API: 1})
		if i%200 == 0 {
			kept[i] = true
			continue
		}
		l.Apply(&event.Event{Op: event.OpFree, Proc: id, Time: 2*i + 1, Addr: i << 12})
	}
	var alloc, inuse, own int64
	newest := false
	for s := range l.Sites {
		alloc += s.AllocObjects
		inuse += s.InuseBytes
		if s.Synthetic {
			continue
		}
		own++
		newest = newest || s.Stack == stacks
		if kept[s.Stack] {
			if s.InuseBytes != size || s.AllocObjects != 1 {
				t.Errorf("stack %d: %+v", s.Stack, s)
			}
			delete(kept, s.Stack)
		}
	}
	if alloc != stacks || inuse != stacks/200*size || len(kept) != 0 || !newest || own > sites {
		t.Errorf("%d allocations, %d bytes in use, %d of those kept have no site, newest %v, %d sites", alloc, inuse, len(kept), newest, own)
	}
	if n := lossOf(l, "sites_full"); n != 0 || lossOf(l, "sites_folded") == 0 {
		t.Errorf("%d calls without a site", n)
	}
}

// With every site in use there is no room, and looking for some is not paid for
// at each call.
func TestNoRoomForSites(t *testing.T) {
	const sites = 1000
	l := New(Options{MaxSites: sites})
	id := event.Process{PID: 1, Start: event.StartUnit}
	for i := uint64(1); i <= 5*sites; i++ {
		l.Apply(&event.Event{Op: event.OpAlloc, Kind: event.KindDevice, Proc: id, Time: i, Addr: i << 12, Size: 1, Stack: i, API: 1})
	}
	if n := lossOf(l, "sites_full"); n != 4*sites {
		t.Errorf("%d calls without a site, want %d", n, 4*sites)
	}
	if l.procs[id].sites.foldAgain == 0 {
		t.Error("it looks at each call")
	}
}
