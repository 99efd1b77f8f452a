package steps

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// maxGrown bounds the stacks that a Report names.
const maxGrown = 100

// A Report has the steps of a process on one device.
type Report struct {
	Process event.Process
	Device  int32
	Steps   snapshot.Steps // without PID, Process, GPU and Grew
	Grown   []Growth       // the stacks that grew most, the largest growth first
}

// A Growth is the number of bytes by which the tensors of a stack grew.
type Growth struct {
	Stack uint64
	Bytes int64
}

// Reports returns a report of each process and device that had tensors, in order. boot is
// the wall-clock time at which CLOCK_MONOTONIC was zero.
func (t *Tracker) Reports(boot time.Time) (out []*Report) {
	for id, p := range t.processes {
		for index, d := range p.devices {
			r := &Report{Process: id, Device: index, Steps: snapshot.Steps{Begun: p.optimizers.marker != caller{} || p.byClip,
				Seen: int64(p.steps - p.hidden), Unsure: int64(p.unsure), Total: d.total, Over: int64(p.steps - p.older)}}
			for _, s := range d.shown() {
				r.Steps.Last = append(r.Steps.Last, snapshot.Step{Number: int64(s.number), Begin: boot.Add(time.Duration(s.begin)), Took: time.Duration(s.end - s.begin), Moved: s.Moved})
			}
			for stack, g := range d.growth {
				by := g.last - g.older
				if r.Steps.Grown += by; by > 0 {
					r.Steps.Gained += by
					r.Grown = append(r.Grown, Growth{stack, by})
				}
			}
			sorting.Stable(r.Grown, func(a, b Growth) int {
				return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Stack, b.Stack))
			})
			r.Grown = r.Grown[:min(len(r.Grown), maxGrown)]
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *Report) int {
		return cmp.Or(a.Process.Compare(b.Process), cmp.Compare(a.Device, b.Device))
	})
	return out
}
