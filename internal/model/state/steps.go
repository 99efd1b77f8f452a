package state

import (
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
	"github.com/gpumemtrace/gpumemtrace/internal/model/tensors"
)

const (
	// keptSteps are those of a process that are kept, the last ones.
	keptSteps = 1000
	// growthSteps is after how many steps what stacks hold is noted, to tell what
	// they grew by. Growth is told over the last one to two times as many.
	growthSteps = 50
	// maxMoves bounds the tensors of a process that wait for a stack.
	maxMoves = 1 << 14
	// maxGrowing bounds the stacks of a process whose growth is known, on all devices.
	maxGrowing = 1 << 15
	// maxTrainings bounds the processes whose steps are told apart.
	maxTrainings = 1 << 10
	// maxCallers bounds the threads of which it is known whether an optimizer runs,
	// and maxCalls the calls of one step that are other optimizers'.
	maxCallers = 1 << 12
	maxCalls   = 1 << 8
	// maxPaths bounds the stacks of which the call that they are in is remembered.
	maxPaths = 1 << 16
)

var stepCauses loss.Causes

var (
	lossStepLate      = stepCauses.Add("steps_stacks_late", "tensors whose stack was not told in time to say whether an optimizer made them: the steps that they may be in are left out")
	lossStepProcesses = stepCauses.Add("steps_processes_full", "tensors whose steps are not told apart because there were too many processes")
	lossStepGrowth    = stepCauses.Add("steps_growth_full", "tensors left out of what grew from step to step because there were too many stacks")
)

// Steps tell the training steps of processes apart, by the tensors that are made: one
// begins where an optimizer's step first makes one (or frees one, where frees have
// stacks), after its thread did so outside of it. Which optimizer's: the first one that
// is seen, of several that take turns; another one's that is called twice while that
// one is not called takes its place. What is not known is no step: it is left out.
type steps struct {
	procs   map[event.Process]*training
	paths   map[uint64]within                  // by stack
	frames  func(stack uint64) []*record.Place // nil for one that was not told
	loss    *loss.Set
	e       *event.Event               // that is being applied, nil for none
	asked   uint64                     // time of the last Loss, see late
	chunks  map[event.Process][]uint64 // of a keyframe, so far
	watcher func(TrainingStep)         // nil for none
}

// A TrainingStep is a step of a process on one device that was seen to end.
type TrainingStep struct {
	Proc       event.Process
	Device     int32
	Number     uint64 // from 1 on
	Begin, End uint64 // CLOCK_MONOTONIC in nanoseconds
}

// A within says in which call of an optimizer's step a stack is, 0 for none.
type within struct {
	call  uint64
	known bool
}

// A training is what is known of one process.
type training struct {
	waiting []move            // from the first whose stack was not told
	inside  map[uint32]uint64 // by thread: the call that it was in last, 0 for none
	mark    calls             // whose call begins a step, zero before the first
	others  map[calls]bool    // those called since
	began   uint64            // time of the last step's beginning, 0 for none
	count   uint64            // whole steps
	unsure  uint64            // those that were left out
	doubt   bool              // the one under way may be several
	hidden  uint64            // steps that are not shown, see afresh
	stale   bool              // the one under way began before what is shown
	devices map[int32]*deviceSteps
	ended   func(device int32, x *trainStep) // nil for none
	growing int                              // stacks in devices
	// Growth is since older, and next becomes that: numbers of steps.
	older, next uint64
}

// calls are those of an optimizer by one thread, from one place of the program.
type calls struct {
	thread uint32
	call   uint64
}

// A move is the beginning of a tensor, or its end (negative).
type move struct {
	time   uint64
	bytes  int64
	stack  uint64 // that it was made at
	by     uint64 // that it began or ended at, 0 if that is not known
	thread uint32
	device int32
}

// A deviceSteps has the steps of a process on one device.
type deviceSteps struct {
	inuse   int64
	current trainStep
	steps   []trainStep // the last ones, in order
	total   snapshot.Moved
	grows   map[uint64]*growth
	dirty   []uint64 // stacks whose bytes changed in this step
}

// A trainStep is a step on one device. Its times are those of its events.
type trainStep struct {
	number, begin, end uint64
	snapshot.Moved
}

// A growth is what a stack holds beyond what it did when growth was begun to be told:
// now, when the step under way began, and at the beginning of two earlier ones.
type growth struct {
	now, last, next, older int64
	dirty                  bool
}

func newSteps(frames func(uint64) []*record.Place) *steps {
	return &steps{procs: map[event.Process]*training{}, paths: map[uint64]within{}, frames: frames, loss: loss.New(stepCauses),
		chunks: map[event.Process][]uint64{}}
}

func newTraining() *training {
	return &training{inside: map[uint32]uint64{}, others: map[calls]bool{}, devices: map[int32]*deviceSteps{}}
}

// moved takes a tensor that came, or that ended.
func (s *steps) moved(c *tensors.Piece) {
	id, bytes := c.Proc, int64(c.To-c.From)
	if c.Ended {
		bytes = -bytes
	}
	t := s.procs[id]
	if t == nil {
		if len(s.procs) >= maxTrainings {
			s.loss.Add(lossStepProcesses, 1)
			return
		}
		t = newTraining()
		s.add(id, t)
	}
	m := move{bytes: bytes, stack: c.Stack, device: c.Said}
	if e := s.e; e != nil {
		m.time, m.by, m.thread = e.Time, e.Stack, e.TID
	}
	if len(t.waiting) == 0 {
		if p, told := s.path(m.by); told {
			s.apply(t, &m, p)
			return
		}
	}
	t.waiting = append(t.waiting, m)
	if len(t.waiting) > maxMoves {
		s.giveUp(t, 1)
	}
}

func (s *steps) add(id event.Process, t *training) {
	s.procs[id] = t
	if watcher := s.watcher; watcher != nil {
		t.ended = func(device int32, x *trainStep) { watcher(TrainingStep{id, device, x.number, x.begin, x.end}) }
	}
}

// path returns that of a stack, which is not told if it is still to come.
func (s *steps) path(stack uint64) (p within, told bool) {
	if stack == 0 {
		return within{}, true
	}
	if p, told = s.paths[stack]; told {
		return p, true
	}
	places := s.frames(stack)
	if places == nil {
		return within{}, false
	}
	frames := make([]*snapshot.Location, len(places))
	for i, place := range places {
		frames[i] = place.Location()
	}
	p.call, p.known = stacks.Step(frames)
	if len(s.paths) >= maxPaths {
		clear(s.paths)
	}
	s.paths[stack] = p
	return p, true
}

// told follows a stack that was told: what waited for it goes on.
func (s *steps) told(st *record.Stack) {
	for _, t := range s.procs {
		if len(t.waiting) > 0 && t.waiting[0].by == st.ID {
			s.advance(t)
		}
	}
}

// late follows a Loss: stacks of what came before it were told. An event may have come
// while it was made, so those are given up that were there at the one before.
func (s *steps) late(now uint64) {
	for _, t := range s.procs {
		n := 0
		for n < len(t.waiting) && t.waiting[n].time <= s.asked {
			n++
		}
		if n > 0 {
			s.giveUp(t, n)
		}
	}
	s.asked = now
}

// giveUp stops to wait for the stacks of the first n moves.
func (s *steps) giveUp(t *training, n int) {
	for i := range t.waiting[:n] {
		m := &t.waiting[i]
		p, told := s.path(m.by)
		if !told {
			s.loss.Add(lossStepLate, 1)
			t.doubt = true
		}
		s.apply(t, m, p)
	}
	t.waiting = t.waiting[n:]
	s.advance(t)
}

// advance applies what waits, up to a stack that was not told.
func (s *steps) advance(t *training) {
	for len(t.waiting) > 0 {
		p, told := s.path(t.waiting[0].by)
		if !told {
			return
		}
		s.apply(t, &t.waiting[0], p)
		t.waiting = t.waiting[1:]
	}
	t.waiting = nil
}

func (s *steps) apply(t *training, m *move, p within) {
	if p.known {
		was, seen := t.inside[m.thread]
		if p.call != 0 && seen && was != p.call {
			t.called(calls{m.thread, p.call}, m.time)
		}
		if !seen && len(t.inside) >= maxCallers {
			clear(t.inside)
		}
		t.inside[m.thread] = p.call
	}
	d := t.devices[m.device]
	if d == nil {
		d = &deviceSteps{grows: map[uint64]*growth{}, current: trainStep{number: t.count + 1, begin: t.began}}
		t.devices[m.device] = d
	}
	d.inuse += m.bytes
	d.current.Add(m.bytes, d.inuse)
	if t.began == 0 {
		return // what is there when the first step begins is no growth
	}
	g := d.grows[m.stack]
	if g == nil {
		if t.growing >= maxGrowing {
			s.loss.Add(lossStepGrowth, 1)
			return
		}
		g = &growth{}
		d.grows[m.stack] = g
		t.growing++
	}
	if g.now += m.bytes; !g.dirty {
		g.dirty, d.dirty = true, append(d.dirty, m.stack)
	}
}

// called follows a call of an optimizer's step.
func (t *training) called(c calls, time uint64) {
	switch {
	case c == t.mark:
		t.boundary(time, !t.doubt)
	case t.mark == calls{} || t.others[c]:
		t.mark = c
		t.boundary(time, false)
	case len(t.others) < maxCalls:
		t.others[c] = true
	}
}

// boundary ends a step, which counts if it is whole, and begins the next.
func (t *training) boundary(time uint64, whole bool) {
	switch {
	case whole:
		t.count++
		if t.stale {
			t.hidden = t.count
		}
	case t.began != 0 && !t.stale:
		t.unsure++
	}
	anew := !whole || t.stale
	again := anew || t.count >= t.next+growthSteps // growth is noted
	for device, d := range t.devices {
		if whole && !t.stale {
			if d.ends(time); t.ended != nil {
				t.ended(device, &d.current)
			}
		}
		d.current = trainStep{number: t.count + 1, begin: time, Moved: snapshot.Moved{PeakBytes: d.inuse, InuseBytes: d.inuse}}
		t.growing -= len(d.grows)
		d.note(again, anew)
		t.growing += len(d.grows)
	}
	if again {
		t.older, t.next = t.next, t.count
		if anew {
			t.older = t.count
		}
	}
	t.began, t.doubt, t.stale = time, false, false
	clear(t.others)
}

func (d *deviceSteps) ends(time uint64) {
	d.current.end = time
	d.total.Sum(&d.current.Moved)
	if d.steps = append(d.steps, d.current); len(d.steps) >= 2*keptSteps {
		d.steps = slices.Clone(d.steps[len(d.steps)-keptSteps:])
	}
}

// kept are the steps that are told.
func (d *deviceSteps) kept() []trainStep { return d.steps[max(len(d.steps)-keptSteps, 0):] }

// note notes what the stacks hold where a step begins. Where it is noted again it
// becomes what growth is told since, the one before first. Or it all begins anew.
func (d *deviceSteps) note(again, anew bool) {
	for _, stack := range d.dirty {
		g := d.grows[stack]
		g.last, g.dirty = g.now, false
	}
	d.dirty = d.dirty[:0]
	if anew {
		clear(d.grows)
	}
	if !again {
		return
	}
	for stack, g := range d.grows {
		g.older, g.next = g.next, g.last
		if *g == (growth{}) {
			delete(d.grows, stack)
		}
	}
}

// afresh makes the steps that are shown those that begin from this moment on. They keep
// their numbers.
func (s *steps) afresh() {
	for _, t := range s.procs {
		t.hidden, t.stale, t.unsure = t.count, t.began != 0, 0
		t.older, t.next = t.count, t.count
		t.growing = 0
		for _, d := range t.devices {
			d.steps, d.total = nil, snapshot.Moved{}
			d.note(true, true)
		}
	}
}

// forget drops all that is known of a process.
func (s *steps) forget(id event.Process) {
	delete(s.procs, id)
	delete(s.chunks, id)
}

// refers adds the stacks that are referred to.
func (s *steps) refers(ids map[uint64]bool) {
	for _, t := range s.procs {
		for i := range t.waiting {
			ids[t.waiting[i].by] = true
		}
		for _, d := range t.devices {
			for stack := range d.grows {
				ids[stack] = true
			}
		}
	}
}
