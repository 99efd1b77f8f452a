package state

import (
	"cmp"
	"math"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/tensors"
)

// A history has the latest steps by which memory came to lie where it does, as many as
// there is room for.
type history struct {
	max     int
	ring    []past // oldest first from next on, once it is full
	next    int
	dropped uint64
	since   uint64 // time of the Cut: what is older was live then, and is no step
	time    uint64 // of the event that changes come of
	changes []past // by it so far
	freed   call   // by which they end, if it is one that ends memory
}

// A call is one of a function of the API table.
type call struct {
	stack      uint64
	api, outer uint16
}

// A past is a snapshot.Change before it is shown. It holds no pointer, so that the
// garbage collector need not look at millions of them.
type past struct {
	proc     event.Process
	time     uint64
	from, to uint64 // of a failure see lacked
	call
	device           int32
	kind             event.Kind
	action           snapshot.Action
	pool, expandable bool
}

// Remember makes the state keep where memory lies, and the latest n steps by which it
// came to, for Want.Layout. It is called before the first record.
func (s *State) Remember(n int) {
	s.history = &history{max: n}
	s.tensors.Layout = true
}

// begin takes the event that the next changes come of, until end.
func (h *history) begin(e *event.Event, s *State) {
	h.time = e.Time
	of := call{e.Stack, e.API, e.Outer}
	switch e.Op {
	case event.OpFree, event.OpUnmap, event.OpHandleRelease, event.OpContextDestroy, event.OpPrimaryReset:
		h.freed = of
	case event.OpAlloc, event.OpHandleCreate:
		if e.Result == event.OutOfMemory && e.Kind.Class() == event.ClassDevice {
			h.changes = append(h.changes, s.lacked(e, of))
		}
	case event.OpOutOfMemory:
		h.changes = append(h.changes, s.lacked(e, of))
	}
}

// end takes what changed by one event: the order in which it ended several things says
// nothing, and is not the same in each run.
func (h *history) end() {
	h.freed = call{}
	if len(h.changes) > 1 {
		slices.SortFunc(h.changes, func(a, b past) int {
			return cmp.Or(cmp.Compare(turns[a.action], turns[b.action]), compareProcess(a.proc, b.proc), cmp.Compare(a.from, b.from))
		})
	}
	for i := range h.changes {
		h.add(&h.changes[i])
	}
	h.changes = h.changes[:0]
}

// turns are the order of actions by one event.
var turns = [...]int{snapshot.BlockEnded: 0, snapshot.SegmentEnded: 1, snapshot.SegmentCame: 2, snapshot.BlockCame: 3, snapshot.MemoryLacked: 4}

// noFigure is what is free where nobody said it.
const noFigure = math.MaxUint64

// lacked returns a failure for want of memory as a step: from is what the driver said
// last to be free on the GPU.
func (s *State) lacked(e *event.Event, of call) past {
	x := past{proc: e.Proc, time: e.Time, from: noFigure, to: e.Size, call: of, device: e.Device, kind: e.Kind, action: snapshot.MemoryLacked}
	if x.device == event.NoDevice {
		x.device = s.ledger.DeviceOf(e.Proc, e.Ctx)
	}
	label := s.label(&ledger.SiteKey{Proc: e.Proc, Kind: event.KindDevice, Device: x.device})
	for _, gpu := range s.accounts.GPUs() {
		if gpu.GPU == label {
			x.from = uint64(gpu.Free)
		}
	}
	return x
}

// laid takes a piece that came to lie somewhere, or that ended.
func (h *history) laid(c *tensors.Piece) {
	if h.time <= h.since {
		return
	}
	x := pastOf(c)
	x.time = h.time
	if c.Ended {
		x.call = h.freed
	}
	h.changes = append(h.changes, x)
}

// pastOf returns c as a step, without its time.
func pastOf(c *tensors.Piece) past {
	x := past{proc: c.Proc, from: c.From, to: c.To, call: call{stack: c.Stack}, device: c.Device, kind: event.KindTensor, pool: c.Pool, expandable: c.Expandable()}
	if c.Site != nil {
		x.kind, x.api, x.outer = c.Site.Kind, c.Site.API, c.Site.Outer
		x.action = snapshot.SegmentCame
	}
	if c.Ended {
		x.action++
	}
	return x
}

func (h *history) add(x *past) {
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
func (h *history) steps() []past {
	h.end()
	return append(append(make([]past, 0, len(h.ring)), h.ring[h.next:]...), h.ring[:h.next]...)
}

// stacks yields those that its steps show.
func (h *history) stacks(yield func(id uint64) bool) {
	for i := range h.ring {
		if !yield(h.ring[i].stack) {
			return
		}
	}
}
