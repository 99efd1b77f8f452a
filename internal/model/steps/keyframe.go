package steps

import (
	"math"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// Visit writes the Tracker to a keyframe, or reads it from one. What is read replaces the
// processes that the tensors of the keyframe led to. OnStep is called with the steps that are
// read.
func (t *Tracker) Visit(f *record.Fields) {
	f.Uint(&t.lossTime)
	f.Loss(t.loss)
	record.Map(f, t.processes, 12, maxProcesses, func(id *event.Process, p **process) {
		if f.Reading() {
			*p = newProcess()
		}
		f.Process(id)
		(*p).visit(f)
	})
	if !f.Reading() || f.Failed() {
		return
	}
	for id, p := range t.processes {
		t.add(id, p)
		for index, d := range p.devices {
			for i := 0; p.onStep != nil && i < len(d.shown()); i++ {
				p.onStep(index, &d.shown()[i])
			}
		}
	}
}

func (p *process) visit(f *record.Fields) {
	record.List(f, &p.waiting, 6, maxWaiting+1, func(x *tensor) {
		f.Uint(&x.time)
		record.Signed(f, &x.bytes)
		f.Uint(&x.stack, &x.by)
		record.Unsigned(f, &x.thread)
		record.Signed(f, &x.device)
	})
	p.optimizers.visit(f)
	f.Uint(&p.began, &p.steps, &p.unsure, &p.older, &p.newer)
	f.Bool(&p.uncertain)
	record.Map(f, p.devices, 16, math.MaxInt, func(index *int32, d **device) {
		if f.Reading() {
			*d = &device{growth: map[uint64]*growth{}}
		}
		record.Signed(f, index)
		(*d).visit(f)
		if f.Reading() {
			p.growing += len((*d).growth)
		}
	})
	p.clippings.visit(f)
	f.Uint(&p.clips)
	f.Bool(&p.byClip, &p.byStep)
}

func (c *callers) visit(f *record.Fields) {
	record.Map(f, c.inside, 2, maxThreads, func(id *uint32, call *uint64) {
		record.Unsigned(f, id)
		f.Uint(call)
	})
	c.marker.visit(f)
	record.Map(f, c.others, 2, maxOthers, func(other *caller, called *bool) {
		other.visit(f)
		*called = true
	})
}

func (c *caller) visit(f *record.Fields) {
	record.Unsigned(f, &c.thread)
	f.Uint(&c.call)
}

func (d *device) visit(f *record.Fields) {
	record.Signed(f, &d.inuse)
	d.current.visit(f)
	last := d.shown()
	record.List(f, &last, 9, MaxLast, func(s *span) { s.visit(f) })
	d.last = last
	total := span{Moved: d.total}
	total.visit(f)
	d.total = total.Moved
	record.Map(f, d.growth, 6, maxGrowing, func(stack *uint64, g **growth) {
		x := record.Make(f, g)
		f.Uint(stack)
		record.Signed(f, &x.now, &x.last, &x.newer, &x.older)
		f.Bool(&x.changed)
		if f.Reading() && x.changed {
			d.changed = append(d.changed, *stack)
		}
	})
}

func (s *span) visit(f *record.Fields) {
	f.Uint(&s.number, &s.begin, &s.end)
	record.Signed(f, &s.AllocBytes, &s.AllocObjects, &s.FreedBytes, &s.FreedObjects, &s.PeakBytes, &s.InuseBytes)
}
