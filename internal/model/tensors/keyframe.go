package tensors

import "github.com/gpumemtrace/gpumemtrace/internal/model/event"

// Keyframe yields events that, applied to a new Ledger after those of the driver
// layer's keyframe, rebuild what is live: the same rows, and what the allocators say.
// What is yielded is valid until yield returns. As with ledger.Ledger.Keyframe, what
// was ever handed out, how and where that ended, peaks and loss start afresh.
func (l *Ledger) Keyframe(yield func(*event.Event) bool) {
	more := true
	emit := func(e *event.Event) bool {
		more = more && yield(e)
		return more
	}
	l.Rows.Keyframe(func(e *event.Event) bool {
		if e.Op == event.OpAlloc {
			e.Handle, e.Part = event.NoTotal, event.NoTotal
			if p := l.procs[e.Proc]; p != nil {
				e.TID = p.tensors[e.Addr].thread
			}
		}
		return emit(e)
	})
	for id, p := range l.procs {
		if p.ended {
			continue
		}
		p.extents.Ascend(func(x *extent) bool {
			if x.handed && x.used == 0 {
				// The end of what was not seen made, so that the memory is a pool's.
				emit(&event.Event{Op: event.OpFree, Space: event.SpaceTensor, Time: l.Rows.Since(id), Proc: id, Addr: x.from, Handle: event.NoTotal})
			}
			return more
		})
		more = more && p.keepPools(l.Rows.Since(id), yield)
		for index, d := range p.devices {
			if d.Told {
				// The end of nothing, with the totals.
				emit(&event.Event{Op: event.OpFree, Space: event.SpaceTensor, Time: l.Rows.Since(id), Proc: id, Device: index,
					Handle: uint64(d.Bytes + d.Before), Part: uint64(d.Reserved)})
			}
		}
	}
}
