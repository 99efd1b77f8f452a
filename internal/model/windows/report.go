package windows

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// A Report has what was seen in windows of a process's caching allocator on a device.
type Report struct {
	Process           event.Process
	Device            int32
	snapshot.Windowed        // without PID, Process, GPU and Rows
	Stacks            []*Row // those that held most at the peak first
}

// A Row has the tensors that a stack made in windows: see snapshot.WindowedRow.
type Row struct {
	Stack uint64
	snapshot.Values
	snapshot.Lives
}

// Reports returns a report of each allocator, in order, with stacks or without.
func (a *Account) Reports(now uint64, stacks bool) (out []*Report) {
	for id, p := range a.processes {
		for index, d := range p.devices {
			r := &Report{Process: id, Device: index, Windowed: d.Windowed}
			if d.open {
				r.Time += time.Duration(a.openFor(now))
			}
			for stack, s := range d.sites {
				if stack == Before {
					r.Before = s.PeakBytes
				} else if stacks {
					r.Stacks = append(r.Stacks, &Row{stack, s.Values, s.Lives})
				}
			}
			slices.SortFunc(r.Stacks, func(a, b *Row) int {
				return cmp.Or(cmp.Compare(b.PeakBytes, a.PeakBytes), cmp.Compare(b.AllocBytes, a.AllocBytes), cmp.Compare(a.Stack, b.Stack))
			})
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *Report) int {
		return cmp.Or(a.Process.Compare(b.Process), cmp.Compare(a.Device, b.Device))
	})
	return out
}
