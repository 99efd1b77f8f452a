package state

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// maxGrew bounds the stacks of which it is told by how much they grew.
const maxGrew = 100

// A grower is a stack that grew over the last steps.
type grower struct {
	stack  uint64
	bytes  int64
	frames []*record.Place
}

// A stepped is what a view has of the steps of a process on a device.
type stepped struct {
	id     event.Process
	device int32
	gpu    string // label
	last   []trainStep
	grew   []grower
	shown  snapshot.Steps // but for what Snapshot adds
}

// stepped adds to v the steps of every process that had tensors.
func (s *State) stepped(v *View) {
	for id, t := range s.steps.procs {
		s.name(v, id)
		for device, d := range t.devices {
			x := stepped{id: id, device: device, last: slices.Clone(d.kept())}
			x.gpu = s.label(&ledger.SiteKey{Proc: id, Kind: event.KindTensor, Device: device})
			x.shown = snapshot.Steps{PID: int(id.PID), Process: v.names[id], GPU: x.gpu,
				Begun: t.began != 0, Seen: int64(t.count - t.hidden), Unsure: int64(t.unsure), Total: d.total, Over: int64(t.count - t.older)}
			for stack, g := range d.grows {
				by := g.last - g.older
				if x.shown.Grown += by; by > 0 {
					x.shown.Gained += by
					x.grew = append(x.grew, grower{stack: stack, bytes: by})
				}
			}
			slices.SortFunc(x.grew, func(a, b grower) int {
				return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(a.stack, b.stack))
			})
			x.grew = x.grew[:min(len(x.grew), maxGrew)]
			for i := range x.grew {
				x.grew[i].frames = s.stacks.Frames(x.grew[i].stack)
			}
			v.steps = append(v.steps, x)
		}
	}
	slices.SortFunc(v.steps, func(a, b stepped) int {
		return cmp.Or(cmp.Compare(a.id.PID, b.id.PID), cmp.Compare(a.id.Start, b.id.Start), cmp.Compare(a.device, b.device))
	})
}

// steps are those of the view, with the stacks that grew.
func (b *builder) steps() (out []snapshot.Steps) {
	boot := b.view.trace.Boot
	for i := range b.view.steps {
		x := &b.view.steps[i]
		one := x.shown
		for j := range x.last {
			s := &x.last[j]
			one.Last = append(one.Last, snapshot.Step{Number: int64(s.number), Begin: boot.Add(time.Duration(s.begin)), Took: time.Duration(s.end - s.begin), Moved: s.Moved})
		}
		for _, g := range x.grew {
			of := site{gpu: x.gpu, frames: g.frames}
			of.Proc, of.Stack, of.Kind, of.Device = x.id, g.stack, event.KindTensor, x.device
			shape := b.shape(of.Stack, of.Kind, of.frames)
			one.Grew = append(one.Grew, snapshot.Growth{Bytes: g.bytes, Sample: &snapshot.Sample{
				Stack: shape.frames, Labels: b.labels(&of, of.Kind, "", shape),
			}})
		}
		out = append(out, one)
	}
	return out
}
