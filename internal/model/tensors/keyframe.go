package tensors

import (
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
)

// Keyframe yields events that rebuild what is live: the same rows, and what the allocators
// report. They must be applied to a new Ledger, after the events of the driver layer's
// keyframe. An event is valid until yield returns. As with ledger.Ledger.Keyframe, totals of
// what was handed out, how and where tensors ended, peaks and losses start at zero.
func (l *Ledger) Keyframe(yield func(*event.Event) bool) {
	k := ledger.Emitter{Yield: yield}
	l.Rows.Keyframe(func(e *event.Event) bool {
		if e.Op == event.OpAlloc {
			e.Op, e.Handle, e.Part = event.OpTensorAlloc, event.NoTotal, event.NoTotal
			e.TID = l.lookup(e.Proc).tensors[e.Addr].thread
		}
		k.Emit(e.Proc, *e)
		return !k.Done
	})
	for _, p := range l.procs {
		if !p.ended {
			p.keyframe(&k)
		}
	}
}

// keyframe emits what is not in Rows.
func (p *process) keyframe(k *ledger.Emitter) {
	since := p.l.Rows.ImageStart(p.id)
	emit := func(e event.Event) { k.Emit(p.id, e) }
	p.memory.extents.Ascend(func(x *extent) bool {
		if x.handed && x.used == 0 {
			// A free of an unseen tensor: it marks the memory as a pool's.
			emit(event.Event{Op: event.OpTensorFree, Time: since, Addr: x.from, Handle: event.NoTotal})
		}
		if x.private != (PoolID{}) {
			emit(event.Event{Op: event.OpPrivatePoolMemory, Time: since, Device: x.device, Addr: x.from, Size: x.to - x.from, Handle: x.private.First, Part: x.private.Second})
		}
		return !k.Done
	})
	for _, w := range p.windows {
		e := event.Event{Op: event.OpPrivatePoolBegin, Time: w.time, TID: w.thread, Device: w.device, Handle: w.pool.First, Part: w.pool.Second}
		if w.alone {
			e.Size = 1
		}
		emit(e)
	}
	for index, d := range p.devices {
		if d.Reported {
			// A free of no tensor, which carries the totals.
			emit(event.Event{Op: event.OpTensorFree, Time: since, Device: index, Handle: uint64(d.Bytes + d.Before), Part: uint64(d.Reserved)})
		}
	}
}
