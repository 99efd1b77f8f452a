package state

import (
	"github.com/gpumemtrace/gpumemtrace/internal/keyed"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/physical"
	"github.com/gpumemtrace/gpumemtrace/internal/model/tensors"
)

// Peaks mark the figures of a process at its peak in every layer.
type peaks struct {
	byProcess map[event.Process]*peak
	ledger    *ledger.Ledger
	physical  *physical.Ledger
	tensors   *tensors.Ledger
}

// A peak is the moment at which a process held the most on GPUs, with the driver's own memory
// where that is seen. While it holds that much, it is when most of it was allocated, and of
// that in tensors: a segment is there before the tensor that it was made for.
type peak struct {
	Held
	lasts bool // it holds as much, and what it holds has not changed but for tensors
}

// follow marks a new peak in every layer, if a process holds so much.
func (x *peaks) follow(id event.Process, held Held) {
	p := keyed.At(x.byProcess, id)
	if held.Compare(p.Held) > 0 {
		p.Held, p.lasts = held, true
		x.ledger.MarkPeak(id)
		x.physical.Rows.MarkPeak(id)
		x.tensors.MarkPeak(id)
	} else if held.Total != p.Total || held.Allocated != p.Allocated {
		p.lasts = false
	}
}

// mayRise reports whether a process may be at a new peak after an event of the driver layer. Of
// a process whose driver calls are seen, such an event changes no total, but how much of it is
// allocated.
func (x *peaks) mayRise(id event.Process) bool {
	p := x.byProcess[id]
	if p == nil {
		return true
	}
	allocated := x.ledger.InUse(id, event.ClassDevice)
	p.lasts = p.lasts && allocated == p.Allocated
	return allocated > p.Allocated
}

// tensorsChanged marks a better moment of a peak that lasts, after an event of the tensor
// layer. What a process has had since before the trace is not seen: one that calls the driver no
// more has a peak of its tensors alone.
func (x *peaks) tensorsChanged(e *event.Event) {
	p := x.byProcess[e.Proc]
	if p == nil {
		p = &peak{lasts: true}
		x.byProcess[e.Proc] = p
	}
	if !p.lasts || e.Op == event.OpTensorFree {
		return
	}
	if bytes := x.tensors.Bytes(e.Proc); bytes > p.Tensors {
		p.Tensors = bytes
		x.tensors.MarkPeak(e.Proc)
	}
}
