package windows

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// A Report has what was seen in windows of a process's caching allocator on a device.
type Report struct {
	Process event.Process
	Device  int32
	// Windows are those in which a tensor was made or freed, the open one included, and Time is
	// how long they lasted.
	Windows int64
	Time    time.Duration
	Steps   int64 // whole training steps
	// Objects and Bytes are of all tensors that were made in windows.
	Objects, Bytes int64
	// Peak are the bytes in tensors at the peak of a step, of which Before are in tensors from
	// before the window, and Reserved what the allocator held. If Whole is false, no whole step
	// was seen, and the peak is of a window.
	Peak, Before, Reserved int64
	Whole                  bool
	Rows                   []*Row // those that held most at the peak first
}

// A Row has the tensors that a stack made in windows.
type Row struct {
	Stack uint64
	Made
	StepObjects, StepBytes int64 // made in whole steps
	Peak                   int64 // bytes at the Peak of the Report
}

// Made are tensors that were made in windows.
type Made struct {
	Objects, Bytes int64
	// Freed are those that were freed in the same window, Life is how long all of them lived,
	// and Longest the longest life, in nanoseconds.
	Freed         int64
	Life, Longest uint64
	// Outlived are those that were live when their window ended.
	Outlived, OutlivedBytes int64
}

// Reports returns a report of each allocator, in order, with rows or without.
func (a *Account) Reports(now uint64, rows bool) (out []*Report) {
	for id, p := range a.processes {
		for index, d := range p.devices {
			r := &Report{Process: id, Device: index, Windows: d.windows, Time: time.Duration(d.time), Steps: d.whole,
				Objects: d.made.objects, Bytes: d.made.bytes, Peak: d.peak.bytes, Reserved: d.peak.reserved, Whole: d.peakWhole}
			if d.open {
				r.Time += time.Duration(a.openFor(now))
			}
			if s := d.sites[Before]; s != nil {
				r.Before = s.peak
			}
			for stack, s := range d.sites {
				if stack == Before || !rows {
					continue
				}
				r.Rows = append(r.Rows, &Row{stack, s.Made, s.whole.objects, s.whole.bytes, s.peak})
			}
			slices.SortFunc(r.Rows, func(a, b *Row) int {
				return cmp.Or(cmp.Compare(b.Peak, a.Peak), cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Stack, b.Stack))
			})
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *Report) int {
		return cmp.Or(a.Process.Compare(b.Process), cmp.Compare(a.Device, b.Device))
	})
	return out
}
