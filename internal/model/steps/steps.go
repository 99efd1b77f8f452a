// Package steps finds the training steps of processes, by the tensors that they make.
//
// A step begins where an optimizer's step first makes a tensor (or frees one, where frees
// have stacks) after its thread did so outside of any. Of several optimizers that
// alternate, the first one that is seen marks the steps; another one that is called twice
// while the first is not called replaces it. A step that cannot be told from several, or
// from none, is left out.
//
// An optimizer that makes no tensors, such as a fused one, is not seen, or only in its first
// step. Then a step begins where gradients are clipped, if the program does that. It may clip
// more than once in a step. So clippings mark steps only after several of them in a row, and
// until an optimizer is called again.
//
// Tensors are counted in the order of their events, also where a stack comes later than
// its event: a tensor without its stack, and all after it, wait for the stack.
package steps

import (
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
	"github.com/gpumemtrace/gpumemtrace/internal/model/tensors"
)

const (
	// MaxLast bounds the steps of a process on a device that a Tracker remembers: the
	// last ones.
	MaxLast = 1000
	// GrowthInterval is the number of steps after which a Tracker notes how much stacks
	// hold. Growth covers the last one to two intervals.
	GrowthInterval = 50
	// maxWaiting bounds the tensors of a process that wait for a stack.
	maxWaiting = 1 << 14
	// maxGrowing bounds the stacks of a process whose growth is counted, on all devices.
	maxGrowing = 1 << 15
	// maxProcesses bounds the processes with steps.
	maxProcesses = 1 << 10
	// maxThreads bounds the threads of a process for which the last call is known, and
	// maxOthers the calls of other optimizers in one step.
	maxThreads = 1 << 12
	maxOthers  = 1 << 8
	// maxCalls bounds the stacks for which the optimizer's call is remembered.
	maxCalls = 1 << 16
)

var causes loss.Causes

var (
	lossLate      = causes.Add("steps_stacks_late", "tensors whose stack came too late to say whether an optimizer or the clipping of gradients made them: training steps that may contain them are left out")
	lossProcesses = causes.Add("steps_processes_full", "tensors that were not assigned to steps because there were too many processes")
	lossGrowth    = causes.Add("steps_growth_full", "tensors left out of the growth from step to step because there were too many stacks")
)

// A Step is a training step of a process on one device that was seen to end.
type Step struct {
	Proc       event.Process
	Device     int32
	Number     uint64 // from 1 on
	Begin, End uint64 // CLOCK_MONOTONIC in nanoseconds
}

// A Tracker finds the steps of all processes.
type Tracker struct {
	// OnStep, if set, is called with each step that ends. The last steps are reported
	// again by a keyframe.
	OnStep func(Step)
	// OnTensor, if set, is called with each tensor that is counted: its bytes, negative for an
	// end. OnBegin is called before the first tensor of a step is: whole says that the step
	// before was one. A process's calls come in the order of its tensors.
	OnTensor func(id event.Process, device int32, stack uint64, bytes int64)
	OnBegin  func(id event.Process, whole bool)

	frames    func(stack uint64) []*record.Place // nil for a stack that has not come
	processes map[event.Process]*process
	calls     map[uint64]call // by stack
	loss      *loss.Set
	lossTime  uint64 // of the last GiveUp
}

// A call says in which Call a stack is.
type call struct {
	stacks.Call
	known bool
}

// A tensor is the beginning of one, or its end (negative bytes).
type tensor struct {
	time   uint64
	bytes  int64
	stack  uint64 // that made it
	by     uint64 // where it began or ended, 0 if that is not known
	thread uint32
	device int32
}

// New returns a Tracker without processes. frames returns the frames of a stack, nil for
// one that has not come yet.
func New(frames func(stack uint64) []*record.Place) *Tracker {
	return &Tracker{frames: frames, processes: map[event.Process]*process{}, calls: map[uint64]call{}, loss: loss.New(causes)}
}

// Apply counts a tensor that began or ended by an event, nil if that is not known.
func (t *Tracker) Apply(piece *tensors.Piece, e *event.Event) {
	p := t.process(piece.Proc)
	if p == nil {
		t.loss.Add(lossProcesses, 1)
		return
	}
	x := tensor{bytes: int64(piece.To - piece.From), stack: piece.Stack, device: piece.AllocatorDevice}
	if piece.Ended {
		x.bytes = -x.bytes
	}
	if e != nil {
		x.time, x.by, x.thread = e.Time, e.Stack, e.TID
	}
	if len(p.waiting) == 0 {
		if c, came := t.call(x.by); came {
			t.count(p, &x, c)
			return
		}
	}
	p.waiting = append(p.waiting, x)
	if len(p.waiting) > maxWaiting {
		t.giveUp(p, 1)
	}
}

// process returns the steps of a process, made if need be, or nil when there is no room.
func (t *Tracker) process(id event.Process) *process {
	p := t.processes[id]
	if p == nil && len(t.processes) < maxProcesses {
		p = newProcess()
		t.add(id, p)
	}
	return p
}

func (t *Tracker) add(id event.Process, p *process) {
	t.processes[id] = p
	if onStep := t.OnStep; onStep != nil {
		p.onStep = func(device int32, x *span) { onStep(Step{id, device, x.number, x.begin, x.end}) }
	}
	if onTensor := t.OnTensor; onTensor != nil {
		p.onTensor = func(x *tensor) { onTensor(id, x.device, x.stack, x.bytes) }
	}
	if onBegin := t.OnBegin; onBegin != nil {
		p.onBegin = func(whole bool) { onBegin(id, whole) }
	}
}

// call returns the call that a stack is in. came is false for a stack that has not come.
func (t *Tracker) call(stack uint64) (c call, came bool) {
	if stack == 0 {
		return call{}, true
	}
	if c, came = t.calls[stack]; came {
		return c, true
	}
	places := t.frames(stack)
	if places == nil {
		return call{}, false
	}
	frames := make([]*snapshot.Location, len(places))
	for i, place := range places {
		frames[i] = place.Location()
	}
	c.Call, c.known = stacks.Step(frames)
	if len(t.calls) >= maxCalls {
		clear(t.calls)
	}
	t.calls[stack] = c
	return c, true
}

// AddStack counts the tensors that waited for a stack.
func (t *Tracker) AddStack(id uint64) {
	for _, p := range t.processes {
		if len(p.waiting) > 0 && p.waiting[0].by == id {
			t.advance(p)
		}
	}
}

// GiveUp stops waiting for the stacks of tensors from before the last GiveUp. Stacks of
// events from before a record.Loss come before it, but events may come while it is made.
func (t *Tracker) GiveUp(now uint64) {
	for _, p := range t.processes {
		n := 0
		for n < len(p.waiting) && p.waiting[n].time <= t.lossTime {
			n++
		}
		if n > 0 {
			t.giveUp(p, n)
		}
	}
	t.lossTime = now
}

// giveUp counts the first n tensors that wait, with their stacks or without.
func (t *Tracker) giveUp(p *process, n int) {
	for i := range p.waiting[:n] {
		x := &p.waiting[i]
		c, came := t.call(x.by)
		if !came {
			t.loss.Add(lossLate, 1)
			p.uncertain = true
		}
		t.count(p, x, c)
	}
	p.waiting = p.waiting[n:]
	t.advance(p)
}

// advance counts the tensors that wait, up to one whose stack has not come.
func (t *Tracker) advance(p *process) {
	for len(p.waiting) > 0 {
		c, came := t.call(p.waiting[0].by)
		if !came {
			return
		}
		t.count(p, &p.waiting[0], c)
		p.waiting = p.waiting[1:]
	}
	p.waiting = nil
}

// count adds a tensor to the step under way, after its call may have begun another step.
func (t *Tracker) count(p *process, x *tensor, c call) {
	p.enter(x, c)
	if !p.add(x) {
		t.loss.Add(lossGrowth, 1)
	}
	if p.onTensor != nil {
		p.onTensor(x)
	}
}

// Hold counts bytes of tensors whose beginnings were not seen, at once.
func (t *Tracker) Hold(id event.Process, device int32, bytes int64) {
	if p := t.process(id); p != nil {
		p.device(device).hold(bytes)
	}
}

// Interrupt says that the next tensors of a process were not seen, nor how these end. The step
// under way is left out. Growth counts from the next step on.
func (t *Tracker) Interrupt(id event.Process) {
	p := t.processes[id]
	if p == nil {
		return
	}
	t.giveUp(p, len(p.waiting))
	p.interrupt()
}

// Reset makes a report show only the steps that begin from now on. They keep their numbers.
func (t *Tracker) Reset() {
	for _, p := range t.processes {
		p.hidden, p.stale, p.unsure = p.steps, p.began != 0, 0
		p.older, p.newer = p.steps, p.steps
		p.growing = 0
		for _, d := range p.devices {
			d.last, d.total = nil, snapshot.Moved{}
			d.noteGrowth(true, true)
		}
	}
}

// Forget drops everything about a process.
func (t *Tracker) Forget(id event.Process) {
	delete(t.processes, id)
}

// Stacks yields the stacks that the Tracker refers to.
func (t *Tracker) Stacks(yield func(id uint64) bool) {
	for _, p := range t.processes {
		for i := range p.waiting {
			if !yield(p.waiting[i].by) {
				return
			}
		}
		for _, d := range p.devices {
			for stack := range d.growth {
				if !yield(stack) {
					return
				}
			}
		}
	}
}

// Loss returns a counter for each cause of loss.
func (t *Tracker) Loss() []loss.Counter { return t.loss.Counters() }
