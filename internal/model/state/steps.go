package state

import (
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/steps"
)

// processSteps are the training steps of a process on a device in a View.
type processSteps struct {
	*steps.Report
	gpu    string            // label
	frames [][]*record.Place // of each stack of Grown
}

// addSteps copies the steps of every process that had tensors.
func (c *collector) addSteps() {
	s := c.s
	for _, r := range s.steps.Reports(s.trace.Boot) {
		c.addName(r.Process)
		if s.windows.Active() { // what was freed of tensors from before has no stack
			r.Steps.Over, r.Steps.Gained, r.Steps.Grown, r.Grown = 0, 0, 0, nil
		}
		x := processSteps{Report: r, gpu: s.deviceLabel(r.Process, r.Device)}
		for _, g := range r.Grown {
			x.frames = append(x.frames, s.stacks.Frames(g.Stack))
		}
		c.v.steps = append(c.v.steps, x)
	}
}

// steps returns the training steps of the view, with the stacks that grew.
func (b *builder) steps() (out []snapshot.Steps) {
	for i := range b.view.steps {
		x := &b.view.steps[i]
		one := x.Steps
		one.PID, one.Process, one.GPU = int(x.Process.PID), b.view.names[x.Process], x.gpu
		for j, g := range x.Grown {
			one.Grew = append(one.Grew, snapshot.Growth{Bytes: g.Bytes, Sample: new(b.tensors(x.Process, x.gpu, g.Stack, x.frames[j]))})
		}
		out = append(out, one)
	}
	return out
}
