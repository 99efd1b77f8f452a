package state

import (
	"cmp"
	"math"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/tensors"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// A history has the latest changes of where memory lies, as many as there is room for.
type history struct {
	max     int
	ring    []change // oldest first from next on, once it is full
	next    int
	dropped uint64
	since   uint64   // time of the Cut: older memory was live then, and is no change
	time    uint64   // of the event that changes come of
	pending []change // by it so far
	freed   call     // by which they end, if it is one that ends memory
}

// A call is one of a function of the API table.
type call struct {
	stack      uint64
	api, outer uint16
}

// A change is a snapshot.Change before it is shown. It holds no pointer, so that the
// garbage collector need not look at millions of them.
type change struct {
	proc     event.Process
	time     uint64
	from, to uint64 // of a failure see failedChange
	call
	device           int32
	kind             event.Kind
	action           snapshot.Action
	pool, expandable bool
}

// begin notes the event that leads to the next changes, until end.
func (h *history) begin(e *event.Event, s *State) {
	h.time = e.Time
	by := call{e.Stack, e.API, e.Outer}
	switch e.Op {
	case event.OpFree, event.OpTensorFree, event.OpUnmap, event.OpHandleRelease, event.OpContextDestroy, event.OpPrimaryReset:
		h.freed = by
	case event.OpAlloc, event.OpHandleCreate:
		if e.Result == event.OutOfMemory && e.Kind.Class() == event.ClassDevice {
			h.pending = append(h.pending, failedChange(s, e, by))
		}
	case event.OpOutOfMemory:
		h.pending = append(h.pending, failedChange(s, e, by))
	}
}

// end adds the changes by one event, in an order of their own: the order in which one
// event ends several things has no meaning, and differs from run to run.
func (h *history) end() {
	h.freed = call{}
	if len(h.pending) > 1 {
		sorting.Stable(h.pending, func(a, b change) int {
			return cmp.Or(cmp.Compare(actionOrder[a.action], actionOrder[b.action]), a.proc.Compare(b.proc), cmp.Compare(a.from, b.from))
		})
	}
	for i := range h.pending {
		h.add(&h.pending[i])
	}
	h.pending = h.pending[:0]
}

// actionOrder is the order of the changes that one event makes.
var actionOrder = [...]int{snapshot.BlockEnded: 0, snapshot.SegmentEnded: 1, snapshot.SegmentCame: 2, snapshot.BlockCame: 3, snapshot.AllocationFailed: 4}

// noFigure stands for free memory that is not known.
const noFigure = math.MaxUint64

// failedChange returns a failure for want of memory as a change: from is how much was free
// on the GPU as of the driver's last figures.
func failedChange(s *State, e *event.Event, by call) change {
	x := change{proc: e.Proc, time: e.Time, from: noFigure, to: e.Size, call: by, device: e.Device, kind: e.Kind, action: snapshot.AllocationFailed}
	if x.device == event.NoDevice {
		x.device = s.ledger.DeviceOf(e.Proc, e.Ctx)
	}
	label := s.deviceLabel(e.Proc, x.device)
	for _, gpu := range s.accounts.GPUs() {
		if gpu.GPU == label {
			x.from = uint64(gpu.Free)
		}
	}
	return x
}

// addPiece adds a piece that came to lie somewhere, or that ended.
func (h *history) addPiece(c *tensors.Piece) {
	if h.time <= h.since {
		return
	}
	x := changeOf(c)
	x.time = h.time
	if c.Ended {
		x.call = h.freed
	}
	h.pending = append(h.pending, x)
}

// changeOf returns c as a change, without its time.
func changeOf(c *tensors.Piece) change {
	x := change{proc: c.Proc, from: c.From, to: c.To, call: call{stack: c.Stack}, device: c.Device, kind: event.KindTensor, pool: c.Pool, expandable: c.Expandable()}
	if c.Site != nil {
		x.kind, x.api, x.outer = c.Site.Kind, c.Site.API, c.Site.Outer
		x.action = snapshot.SegmentCame
	}
	if c.Ended {
		x.action++
	}
	return x
}

func (h *history) add(x *change) {
	switch {
	case len(h.ring) < h.max:
		h.ring = append(h.ring, *x)
	case h.max > 0:
		h.ring[h.next] = *x
		h.next = (h.next + 1) % h.max
		fallthrough
	default:
		h.dropped++
	}
}

// steps returns a copy, oldest first.
func (h *history) steps() []change {
	h.end()
	return append(append(make([]change, 0, len(h.ring)), h.ring[h.next:]...), h.ring[:h.next]...)
}

// stacks yields those of its changes.
func (h *history) stacks(yield func(id uint64) bool) {
	for i := range h.ring {
		if !yield(h.ring[i].stack) {
			return
		}
	}
}
