package tensors

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
)

// PyTorch's allocator takes segments for a private pool (of CUDA graphs, of
// torch.cuda.MemPool) between two calls, beginAllocateToPool and endAllocateToPool, and
// then for those requests alone that a filter lets through: of the work that a stream
// captures, or of one stream, of the thread that began, or (PyTorch before 2.8) of all.
// A segment is of its pool as long as it is there. Which filter it is, is not told. So
// what the thread that began takes meanwhile is the pool's; with what others take then
// that is known only of a capture that keeps them from taking memory for anything else.
// Outside of all such windows every segment is for the pool of all requests.

// maxWindows bounds the windows of a process. The oldest goes, and its end is then one
// of a window that was not seen to begin.
const maxWindows = 64

// A PoolID is a private pool's MempoolId_t, or zero for the pool of all requests. Pools
// of graphs have a First, those that the program made by itself a Second.
type PoolID struct{ First, Second uint64 }

// UnknownPool is of what may be a private pool's.
var UnknownPool = PoolID{event.NoTotal, event.NoTotal}

// String returns "" for the pool of all requests, "unknown", or the id.
func (p PoolID) String() string {
	switch p {
	case PoolID{}:
		return ""
	case UnknownPool:
		return "unknown"
	}
	return fmt.Sprintf("%d.%d", p.First, p.Second)
}

func (p PoolID) compare(o PoolID) int {
	return cmp.Or(cmp.Compare(p.First, o.First), cmp.Compare(p.Second, o.Second))
}

// A window is open while the allocator takes memory on a device for a private pool.
type window struct {
	device int32
	pool   PoolID
	thread uint32 // that opened it
	time   uint64
	alone  bool // a capture of thread's keeps others from a plain cuMemAlloc
}

// During says in which call the memory comes that Began tells of next, nil for none:
// what is told of then is older than the process's first window.
func (l *Ledger) During(e *event.Event) {
	l.during = e
	if e == nil || e.Op != event.OpCaptureBegin && e.Op != event.OpCaptureEnd {
		return
	}
	p := l.procs[e.Proc]
	if p == nil || e.Op == event.OpCaptureBegin && e.Result != event.Success {
		return
	}
	// The allocator opens its window just before the capture, on the same thread.
	for i := range slices.Backward(p.windows) {
		if w := &p.windows[i]; w.thread == e.TID {
			w.alone = e.Op == event.OpCaptureBegin && e.Part == 1
			return
		}
	}
}

// window opens or closes one.
func (l *Ledger) window(p *process, e *event.Event) {
	w := window{device: e.Device, pool: PoolID{e.Handle, e.Part}, thread: e.TID, time: e.Time, alone: e.Size == 1}
	i := slices.IndexFunc(p.windows, func(o window) bool { return o.device == w.device && o.pool == w.pool })
	if i >= 0 {
		p.windows = slices.Delete(p.windows, i, i+1)
	}
	switch {
	case e.Op == event.OpCaptureEnd && i < 0:
		l.loss.Add(lossPoolBegun, 1)
		l.doubt(p, e)
	case e.Op == event.OpCaptureEnd:
	default:
		if i >= 0 {
			l.loss.Add(lossPoolEnded, 1)
		}
		if len(p.windows) >= maxWindows {
			l.loss.Add(lossPools, 1)
			p.windows = slices.Delete(p.windows, 0, 1)
		}
		p.windows = append(p.windows, w)
	}
}

// doubt says that any segment so far may be of the pool whose window's end e is.
func (l *Ledger) doubt(p *process, e *event.Event) {
	p.extents.Ascend(func(x *extent) bool {
		if x.private == (PoolID{}) && (x.device == e.Device || x.device == event.NoDevice) {
			x.private = UnknownPool
		}
		return true
	})
}

// private returns the pool of memory that comes to lie at a call site.
func (l *Ledger) private(p *process, at *ledger.Site) PoolID {
	if e := l.during; e != nil && e.Proc == p.id {
		return p.serves(at.Device, e.TID, at.Kind == event.KindDevice)
	}
	return PoolID{}
}

// Private returns the pool that requests of a thread are for on a device.
func (l *Ledger) Private(proc event.Process, device int32, thread uint32) PoolID {
	if p := l.procs[proc]; p != nil {
		return p.serves(device, thread, false)
	}
	return PoolID{}
}

// serves returns the pool for which a thread takes memory on a device: by a plain
// cuMemAlloc, or else by a call that any capture allows.
func (p *process) serves(device int32, thread uint32, plain bool) PoolID {
	var open []*window
	own := 0
	for i := range p.windows {
		if w := &p.windows[i]; w.device == device || device == event.NoDevice {
			open = append(open, w)
			if w.thread == thread {
				own++
			}
		}
	}
	switch {
	case len(open) == 0:
		return PoolID{}
	// Of several windows the oldest counts whose filter lets the request through.
	case device != event.NoDevice && own == 1 && open[0].thread == thread,
		device != event.NoDevice && len(open) == 1 && open[0].alone && plain:
		return open[0].pool
	}
	return UnknownPool
}

// closeWindows forgets the windows of an image that was replaced at time t.
func (p *process) closeWindows(t uint64) {
	p.windows = slices.DeleteFunc(p.windows, func(w window) bool { return w.time <= t })
}

// keepPools yields events that rebuild which extents are private pools', and the
// windows that are open.
func (p *process) keepPools(since uint64, yield func(*event.Event) bool) bool {
	more := true
	p.extents.Ascend(func(x *extent) bool {
		if x.private != (PoolID{}) {
			more = yield(&event.Event{Op: event.OpMap, Space: event.SpaceTensor, Time: since, Proc: p.id, Device: x.device,
				Addr: x.from, Size: x.to - x.from, Handle: x.private.First, Part: x.private.Second})
		}
		return more
	})
	for i := range p.windows {
		w := &p.windows[i]
		e := &event.Event{Op: event.OpCaptureBegin, Space: event.SpaceTensor, Time: w.time, Proc: p.id, TID: w.thread, Device: w.device,
			Handle: w.pool.First, Part: w.pool.Second}
		if w.alone {
			e.Size = 1
		}
		more = more && yield(e)
	}
	return more
}
