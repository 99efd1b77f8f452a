package tensors

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
)

// TestMemoryBeforeTheFirstTensor: a process without tensors has nothing here, and its
// first tensor lies in what the driver handed out before.
func TestMemoryBeforeTheFirstTensor(t *testing.T) {
	early, late := newFeed(), newFeed()
	early.l.process(proc)
	now := uint64(0)
	tell := func(f func(*feed, *event.Event), e event.Event) {
		now++
		for _, x := range []*feed{early, late} {
			one := e
			one.Time, one.Proc = now, proc
			f(x, &one)
		}
	}
	driver := func(f *feed, e *event.Event) {
		f.driver.Apply(e)
		f.l.Follow(e)
	}
	layer := func(f *feed, e *event.Event) { f.l.Apply(e) }
	alloc := func(kind event.Kind, stack, addr, size uint64) {
		tell(driver, event.Event{Op: event.OpAlloc, Kind: kind, Stack: stack, Addr: addr, Size: size})
	}
	alloc(event.KindDevice, 1, 0x10000, 0x1000)
	alloc(event.KindAsync, 2, 0x20000, 0x1000)
	alloc(event.KindHost, 3, 0x30000, 0x1000)
	alloc(event.KindDevice, 4, 0x40000, 0x1000)
	tell(driver, event.Event{Op: event.OpFree, Addr: 0x40000})
	tell(driver, event.Event{Op: event.OpHandleCreate, Kind: event.KindVMM, Stack: 5, Handle: 1, Size: 0x2000})
	tell(driver, event.Event{Op: event.OpMap, Handle: 1, Addr: 0x50000, Size: 0x2000})
	tell(driver, event.Event{Op: event.OpMap, Handle: 9, Addr: 0x60000, Size: 0x2000}) // never seen created
	if len(late.l.procs) != 0 {
		t.Errorf("%d processes without a tensor are kept", len(late.l.procs))
	}
	for _, addr := range []uint64{0x10000, 0x20800, 0x30000, 0x40000, 0x51000, 0x60000} {
		tell(layer, event.Event{Op: event.OpTensorAlloc, Kind: event.KindTensor, Addr: addr, Size: 0x800, Handle: event.NoTotal, Part: event.NoTotal})
	}
	pools := func(l *Ledger) map[uint64]Pool {
		out := map[uint64]Pool{}
		for _, pool := range l.Pools {
			stack := uint64(0)
			if pool.Site != nil {
				stack = pool.Site.Stack
			}
			out[stack] = Pool{Inuse: pool.Inuse, HandedExtents: pool.HandedExtents}
		}
		return out
	}
	want := map[uint64]Pool{0: {Inuse: 3 * 0x800}, 1: {Inuse: 0x800, HandedExtents: 1}, 2: {Inuse: 0x800, HandedExtents: 1}, 5: {Inuse: 0x800, HandedExtents: 1}}
	for name, f := range map[string]*feed{"early": early, "late": late} {
		if diff := cmp.Diff(want, pools(f.l), cmp.AllowUnexported(Pool{}), cmp.Comparer(func(a, b *ledger.Site) bool { return a == b })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
