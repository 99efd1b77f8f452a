package tensors

import (
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

// PyTorch's allocator takes segments for a private pool (of CUDA graphs, of
// torch.cuda.MemPool) between two calls, beginAllocateToPool and endAllocateToPool, and
// then for those requests alone that a filter lets through: of the work that a stream
// captures, or of one stream, of the thread that began, or (PyTorch before 2.8) of all.
// A segment belongs to its pool as long as it is there. The filter is not known. So what
// the thread that began takes between the two calls is the pool's. What other threads take
// then is known to be the pool's only during a capture that keeps them from taking memory
// for anything else. Outside of all such windows every segment is for the pool of all
// requests.

// maxWindows bounds the windows of a process. The oldest one is removed; its end is then
// that of a window that was not seen to begin.
const maxWindows = 64

// A window is open while the allocator takes memory on a device for a private pool.
type window struct {
	device int32
	pool   holder.PoolID
	thread uint32 // that opened it
	time   uint64
	alone  bool // a capture of thread's keeps others from a plain cuMemAlloc
}

// windows are those of one process that are open, by age.
type windows []window

// capture applies an event that begins or ends a stream capture.
func (l *Ledger) capture(e *event.Event) {
	if e == nil || e.Op != event.OpCaptureBegin && e.Op != event.OpCaptureEnd {
		return
	}
	if p := l.procs[e.Proc]; p != nil && (e.Op == event.OpCaptureEnd || e.Result == event.Success) {
		p.windows.capture(e)
	}
}

// capture follows the beginning or the end of a stream capture. The allocator opens its
// window just before the capture, on the same thread.
func (ws windows) capture(e *event.Event) {
	for i := range slices.Backward(ws) {
		if w := &ws[i]; w.thread == e.TID {
			w.alone = e.Op == event.OpCaptureBegin && e.Part == 1
			return
		}
	}
}

// remove removes the window that e opens or closes, and returns whether there was one.
func (ws *windows) remove(e *event.Event) bool {
	i := slices.IndexFunc(*ws, func(w window) bool {
		return w.device == e.Device && w.pool == holder.PoolID{First: e.Handle, Second: e.Part}
	})
	if i >= 0 {
		*ws = slices.Delete(*ws, i, i+1)
	}
	return i >= 0
}

func (ws *windows) open(e *event.Event, lost *loss.Set) {
	if ws.remove(e) {
		lost.Add(lossPoolEnded, 1)
	}
	if len(*ws) >= maxWindows {
		lost.Add(lossPools, 1)
		*ws = slices.Delete(*ws, 0, 1)
	}
	*ws = append(*ws, window{device: e.Device, pool: holder.PoolID{First: e.Handle, Second: e.Part}, thread: e.TID, time: e.Time, alone: e.Size == 1})
}

// doubt records that any segment so far on a device may be a private pool's.
func (m *memory) doubt(device int32) {
	m.extents.Ascend(func(x *extent) bool {
		if x.private == (holder.PoolID{}) && (x.device == device || x.device == event.NoDevice) {
			x.private = holder.UnknownPool
		}
		return true
	})
}

// privatePool returns the pool of memory that begins at a call site by an event, nil for one that
// is not known.
func (p *process) privatePool(at *ledger.Site, e *event.Event) holder.PoolID {
	if e != nil && e.Proc == p.id {
		return p.windows.serves(at.Device, e.TID, at.Kind == event.KindDevice)
	}
	return holder.PoolID{}
}

// Private returns the pool that requests of a thread are for on a device.
func (l *Ledger) Private(proc event.Process, device int32, thread uint32) holder.PoolID {
	return l.lookup(proc).windows.serves(device, thread, false)
}

// serves returns the pool for which a thread takes memory on a device: by a plain
// cuMemAlloc, or else by a call that any capture allows.
func (ws windows) serves(device int32, thread uint32, plain bool) holder.PoolID {
	var open []*window
	own := 0
	for i := range ws {
		if w := &ws[i]; w.device == device || device == event.NoDevice {
			open = append(open, w)
			if w.thread == thread {
				own++
			}
		}
	}
	switch {
	case len(open) == 0:
		return holder.PoolID{}
	// Of several windows the oldest counts whose filter lets the request through.
	case device != event.NoDevice && own == 1 && open[0].thread == thread,
		device != event.NoDevice && len(open) == 1 && open[0].alone && plain:
		return open[0].pool
	}
	return holder.UnknownPool
}

// reset removes the windows of an image that was replaced at a time.
func (ws *windows) reset(at uint64) {
	*ws = slices.DeleteFunc(*ws, func(w window) bool { return w.time <= at })
}
