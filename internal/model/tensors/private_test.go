package tensors

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
)

// began and ended tell l where the driver layer's memory began to lie, by no call that is known,
// or ended.
func (l *Ledger) began(proc event.Process, from, to uint64, at *ledger.Site) {
	l.follow(&ledger.Extent{Proc: proc, From: from, To: to, Site: at}, nil)
}

func (l *Ledger) ended(proc event.Process, from, to uint64) { l.began(proc, from, to, nil) }

// newDriver returns a ledger of the driver layer that l follows, and whose peaks are l's too.
func newDriver(l *Ledger, opt ledger.Options) *ledger.Ledger {
	opt.Extents = l.Follows
	opt.Peaked = func(id event.Process) bool {
		l.MarkPeak(id)
		return true
	}
	driver := ledger.New(opt)
	l.SetDriver(driver)
	return driver
}

// layers are the driver's and that of tensors, as package state has them.
type layers struct {
	l      *Ledger
	driver *ledger.Ledger
}

func newLayers() *layers {
	l := New(ledger.Options{})
	return &layers{l, newDriver(l, ledger.Options{})}
}

func (f *layers) apply(e *event.Event) {
	if e.Op.Tensor() || e.Op == event.OpExec || e.Op == event.OpExit {
		f.l.Apply(e)
	}
	if !e.Op.Tensor() {
		f.driver.Apply(e)
		f.l.Follow(e)
	}
}

// A poolModel has all events of a process, and goes through those before an allocation
// for the pool that it is of.
type poolModel []event.Event

// same tells whether a and b are of one window.
func same(a, b *event.Event) bool {
	return a.Device == b.Device && a.Handle == b.Handle && a.Part == b.Part
}

func windowed(e *event.Event) bool { return e.Op.Tensor() }

// open returns the indexes of events that began the windows that are open before event k.
func (m poolModel) open(k int) (out []int) {
	for i := range k {
		if e := &m[i]; e.Op == event.OpPrivatePoolBegin &&
			!slices.ContainsFunc(m[i+1:k], func(o event.Event) bool { return windowed(&o) && same(e, &o) }) {
			out = append(out, i)
		}
	}
	return out
}

// alone tells whether the window that event i began was that of a capture before event k
// that keeps other threads from a plain cuMemAlloc.
func (m poolModel) alone(i, k int) (yes bool) {
	for j := i + 1; j < k; j++ {
		e := &m[j]
		if windowed(e) || e.Op == event.OpAlloc || e.TID != m[i].TID {
			continue
		}
		newest := -1
		for _, o := range m.open(j) {
			if m[o].TID == e.TID {
				newest = o
			}
		}
		if newest == i && (e.Op == event.OpCaptureEnd || e.Result == event.Success) {
			yes = e.Op == event.OpCaptureBegin && e.Part == 1
		}
	}
	return yes
}

// pool returns that of the memory that event k brought.
func (m poolModel) pool(k int) holder.PoolID {
	e := &m[k]
	var there []int
	own := 0
	for _, i := range m.open(k) {
		if m[i].Device == e.Device || e.Device == event.NoDevice {
			there = append(there, i)
			if m[i].TID == e.TID {
				own++
			}
		}
	}
	if len(there) == 0 {
		// A window that ends after it was not seen to begin may have been open. By
		// then the tensor in it has told its device.
		for j := k + 1; j < len(m); j++ {
			o := &m[j]
			if o.Op == event.OpPrivatePoolEnd && o.Device == max(e.Device, 0) &&
				!slices.ContainsFunc(m.open(j), func(i int) bool { return same(&m[i], o) }) {
				return holder.UnknownPool
			}
		}
		return holder.PoolID{}
	}
	first := &m[there[0]]
	if e.Device != event.NoDevice && (own == 1 && first.TID == e.TID || len(there) == 1 && e.Kind == event.KindDevice && m.alone(there[0], k)) {
		return holder.PoolID{First: first.Handle, Second: first.Part}
	}
	return holder.UnknownPool
}

// TestPrivatePools: after each of many random events each segment is of the pool that the
// model says, and so it is in what a keyframe rebuilds.
func TestPrivatePools(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 2))
		f := newLayers()
		var m poolModel
		at := map[uint64]int{} // index of the event that brought what is there
		for now := uint64(1); now < 60; now++ {
			e := event.Event{Time: now, Proc: proc, TID: 1 + uint32(r.IntN(2)), Device: int32(r.IntN(2))}
			switch n := r.IntN(12); {
			case n < 3:
				e.Op = event.OpPrivatePoolBegin
			case n < 6:
				e.Op = event.OpPrivatePoolEnd
			case n < 7:
				e.Op, e.Stream, e.Part, e.Device = event.OpCaptureBegin, uint64(e.TID)+8, uint64(r.IntN(2)), event.NoDevice
				if r.IntN(4) == 0 {
					e.Result = event.IllegalState
				}
			case n < 8:
				e.Op, e.Stream, e.Device = event.OpCaptureEnd, uint64(e.TID)+8, event.NoDevice
			default:
				e.Op, e.Kind, e.Addr, e.Size = event.OpAlloc, []event.Kind{event.KindDevice, event.KindVMM}[r.IntN(2)], now*largeSegment, largeSegment
				if r.IntN(5) == 0 {
					e.Device = event.NoDevice
				}
				at[e.Addr] = len(m)
			}
			if windowed(&e) {
				pool := []holder.PoolID{{First: 1}, {First: 2}, {Second: 1}}[r.IntN(3)]
				// Mostly the end of one that is open.
				if open := m.open(len(m)); e.Op == event.OpPrivatePoolEnd && len(open) > 0 && r.IntN(8) > 0 {
					o := &m[open[r.IntN(len(open))]]
					pool, e.Device = holder.PoolID{First: o.Handle, Second: o.Part}, o.Device
				}
				e.Handle, e.Part = pool.First, pool.Second
			}
			m = append(m, e)
			switch {
			case e.Kind == event.KindVMM:
				f.apply(&event.Event{Op: event.OpHandleCreate, Kind: e.Kind, Time: now, Proc: proc, TID: e.TID, Device: e.Device, Handle: now, Size: e.Size})
				f.apply(&event.Event{Op: event.OpMap, Time: now, Proc: proc, TID: e.TID, Handle: now, Addr: e.Addr, Size: e.Size})
			default:
				f.apply(&e)
			}
			if e.Op == event.OpAlloc { // a tensor in each
				f.apply(&event.Event{Op: event.OpTensorAlloc, Kind: event.KindTensor, Time: now, Proc: proc, Addr: e.Addr, Size: 512,
					Device: max(e.Device, 0), Handle: event.NoTotal, Part: event.NoTotal})
			}
			want := map[uint64]holder.PoolID{}
			for addr, k := range at {
				want[addr] = m.pool(k)
			}
			rebuilt := newLayers()
			copyFields(t, f.driver.Visit, rebuilt.driver.Visit)
			copyFields(t, f.l.Visit, rebuilt.l.Visit)
			for name, l := range map[string]*Ledger{"": f.l, "after a keyframe, ": rebuilt.l} {
				if got := poolsOf(l); !maps.Equal(got, want) {
					t.Fatalf("%sseed %d, event %d: %+v\n%v, want\n%v", name, seed, now, e, got, want)
				}
			}
			for _, device := range []int32{0, 1} {
				if a, b := f.l.Private(proc, device, 1), rebuilt.l.Private(proc, device, 1); a != b {
					t.Fatalf("seed %d, event %d: thread 1 asks for pool %q, after a keyframe for %q", seed, now, a, b)
				}
			}
			for _, pool := range want {
				seen[pool.String()]++
			}
		}
	}
	for _, pool := range []string{"", "1.0", "2.0", "0.1", "unknown"} {
		if seen[pool] < 100 {
			t.Errorf("%d segments were of pool %q", seen[pool], pool)
		}
	}
}

// poolsOf returns the pools of a process's segments, by address.
func poolsOf(l *Ledger) map[uint64]holder.PoolID {
	out := map[uint64]holder.PoolID{}
	if p := l.procs[proc]; p != nil {
		p.memory.extents.Ascend(func(x *extent) bool {
			out[x.from] = x.private
			return true
		})
	}
	return out
}

// TestPrivatePoolsOfOthers: a window is of one process, and of one image of it.
func TestPrivatePoolsOfOthers(t *testing.T) {
	f := newLayers()
	other := event.Process{PID: 9, Start: 1}
	window := func(of event.Process, now uint64, op event.Op) {
		f.apply(&event.Event{Op: op, Time: now, Proc: of, TID: 1, Handle: 1})
	}
	alloc := func(now uint64) holder.PoolID {
		f.apply(&event.Event{Op: event.OpAlloc, Kind: event.KindDevice, Time: now, Proc: proc, TID: 1, Addr: now << 30, Size: largeSegment})
		return poolsOf(f.l)[now<<30]
	}
	window(proc, 1, event.OpPrivatePoolBegin)
	if got := alloc(2); got.String() != "1.0" {
		t.Errorf("in the window it is of pool %q", got)
	}
	f.apply(&event.Event{Op: event.OpExec, Time: 3, Proc: proc})
	if got := alloc(4); got != (holder.PoolID{}) {
		t.Errorf("after an exec it is of pool %q", got)
	}
	window(other, 5, event.OpPrivatePoolBegin)
	if got := alloc(6); got != (holder.PoolID{}) {
		t.Errorf("in another process's window it is of pool %q", got)
	}
	window(other, 7, event.OpPrivatePoolEnd)
	window(proc, 8, event.OpPrivatePoolBegin)
	f.apply(&event.Event{Op: event.OpExit, Time: 9, Proc: proc})
	window(proc, 10, event.OpPrivatePoolEnd)
	for _, c := range f.l.Loss() {
		if c.Value != 0 {
			t.Errorf("%d %s", c.Value, c.Name)
		}
	}
}

// TestManyWindows: what is lost of windows is counted.
func TestManyWindows(t *testing.T) {
	f := newLayers()
	window := func(now uint64, op event.Op, pool uint64) {
		f.apply(&event.Event{Op: op, Time: now, Proc: proc, TID: 1, Handle: pool})
	}
	for pool := range uint64(maxWindows + 3) {
		window(1+pool, event.OpPrivatePoolBegin, 1+pool)
	}
	if n := len(f.l.procs[proc].windows); n != maxWindows {
		t.Errorf("%d windows are kept, want %d", n, maxWindows)
	}
	window(100, event.OpPrivatePoolEnd, 1)            // the oldest is not there any more
	window(101, event.OpPrivatePoolBegin, maxWindows) // one whose end was lost
	want := map[string]uint64{"tensor_private_pools_full": 3, "tensor_private_pool_begin_unseen": 1, "tensor_private_pool_end_unseen": 1}
	for _, c := range f.l.Loss() {
		if c.Value != want[c.Name] {
			t.Errorf("%d %s, want %d", c.Value, c.Name, want[c.Name])
		}
	}
}
