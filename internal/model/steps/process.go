package steps

import (
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// A process has the steps of one process.
type process struct {
	waiting    []tensor // from the first whose stack has not come
	optimizers callers
	clippings  callers
	clips      uint64             // calls of clipping since an optimizer's last call
	byClip     bool               // clipping marks the steps
	byStep     bool               // clipping never marks them: an optimizer made tensors in two calls
	began      uint64             // time of the last step's beginning, 0 for none
	steps      uint64             // whole steps
	unsure     uint64             // steps that were left out
	uncertain  bool               // the step under way may be several
	hidden     uint64             // steps that are not shown: see Tracker.Reset
	stale      bool               // the step under way began before what is shown
	devices    map[int32]*device  // by CUDA ordinal
	onStep     func(int32, *span) // nil for none
	onTensor   func(*tensor)      // nil for none
	onBegin    func(whole bool)   // nil for none
	growing    int                // stacks in the growth of all devices
	// Growth counts from step number older, and later from newer.
	older, newer uint64
}

// callers are the places at which a process calls optimizers, or clips gradients.
type callers struct {
	inside map[uint32]uint64 // by thread: the call that it was in last, 0 for none
	marker caller            // whose calls mark steps, zero before the first
	others map[caller]bool   // those that called since the marker did
}

// A caller is a line of the program in one thread.
type caller struct {
	thread uint32
	call   uint64
}

// A mark says which call a tensor enters.
type mark int

const (
	noCall    mark = iota // none, or the same one as the tensor before
	unmarked              // one that marks no step
	firstMark             // the first one that marks a step
	nextMark              // another one of the same caller
)

// A device has the steps of a process on one device.
type device struct {
	inuse   int64
	current span
	last    []span // up to twice MaxLast, in order
	total   snapshot.Moved
	growth  map[uint64]*growth // by stack
	changed []uint64           // stacks whose bytes changed in this step
}

// A span is a step on one device. Its times are those of its events.
type span struct {
	number, begin, end uint64
	snapshot.Moved
}

// A growth is how many bytes a stack holds beyond those it held when counting began: now,
// when the step under way began, and at the beginning of steps newer and older.
type growth struct {
	now, last, newer, older int64
	changed                 bool
}

func newProcess() *process {
	return &process{optimizers: newCallers(), clippings: newCallers(), devices: map[int32]*device{}}
}

func newCallers() callers {
	return callers{inside: map[uint32]uint64{}, others: map[caller]bool{}}
}

// enter follows the thread of a tensor into a call, or out of it.
func (c *callers) enter(thread uint32, call uint64) mark {
	before, seen := c.inside[thread]
	if !seen && len(c.inside) >= maxThreads {
		clear(c.inside)
	}
	c.inside[thread] = call
	if call == 0 || !seen || before == call {
		return noCall
	}
	switch by := (caller{thread, call}); {
	case by == c.marker:
		clear(c.others)
		return nextMark
	case c.marker == caller{} || c.others[by]:
		c.marker = by
		clear(c.others)
		return firstMark
	case len(c.others) < maxOthers:
		c.others[by] = true
	}
	return unmarked
}

// enoughClips is the number of calls of clipping, without a call of an optimizer between them, after
// which clipping marks the steps.
const enoughClips = 3

// enter ends the step under way if the tensor is in a call that marks the next one.
func (p *process) enter(x *tensor, c call) {
	if !c.known {
		return
	}
	var step, clip uint64
	if c.Clips {
		clip = c.ID
	} else {
		step = c.ID
	}
	whole := p.began != 0 && !p.uncertain
	stepping := p.optimizers.enter(x.thread, step)
	if stepping != noCall {
		p.clips = 0
	}
	switch {
	case stepping == nextMark:
		whole = whole && !p.byClip
		p.byClip, p.byStep = false, true
		p.begin(x.time, whole)
	case stepping == firstMark && !p.byClip:
		p.begin(x.time, false)
	}
	clipping := p.clippings.enter(x.thread, clip)
	if clipping == noCall {
		return
	}
	if p.clips++; p.byStep || p.clips < enoughClips {
		return
	}
	switch {
	case clipping == nextMark:
		whole = whole && p.byClip
		p.byClip = true
		p.begin(x.time, whole)
	case clipping == firstMark && p.byClip:
		p.begin(x.time, false)
	}
}

// begin ends a step, which counts if it is whole, and begins the next one.
func (p *process) begin(time uint64, whole bool) {
	switch {
	case whole:
		p.steps++
		if p.stale {
			p.hidden = p.steps
		}
	case p.began != 0 && !p.stale:
		p.unsure++
	}
	restart := !whole || p.stale
	note := restart || p.steps >= p.newer+GrowthInterval
	for index, d := range p.devices {
		if whole && !p.stale {
			if d.end(time); p.onStep != nil {
				p.onStep(index, &d.current)
			}
		}
		d.current = span{number: p.steps + 1, begin: time, Moved: snapshot.Moved{PeakBytes: d.inuse, InuseBytes: d.inuse}}
		p.growing -= len(d.growth)
		d.noteGrowth(note, restart)
		p.growing += len(d.growth)
	}
	if note {
		p.older, p.newer = p.newer, p.steps
		if restart {
			p.older = p.steps
		}
	}
	if p.onBegin != nil {
		p.onBegin(whole && !p.stale)
	}
	p.began, p.uncertain, p.stale = time, false, false
}

// interrupt drops the step under way, and what is in use.
func (p *process) interrupt() {
	p.waiting, p.began, p.uncertain, p.stale, p.growing = nil, 0, false, false, 0
	p.older, p.newer = p.steps, p.steps
	for _, c := range []*callers{&p.optimizers, &p.clippings} {
		clear(c.inside)
		clear(c.others)
	}
	for _, d := range p.devices {
		*d = device{last: d.last, total: d.total, growth: map[uint64]*growth{}, current: span{number: p.steps + 1}}
	}
}

// add counts a tensor in the step under way. It is false if there is no room to count by
// how much the tensor's stack grew.
func (p *process) add(x *tensor) bool {
	d := p.device(x.device)
	d.inuse += x.bytes
	d.current.Add(x.bytes, d.inuse)
	if p.began == 0 {
		return true // what is there when the first step begins is no growth
	}
	g := d.growth[x.stack]
	if g == nil {
		if p.growing >= maxGrowing {
			return false
		}
		g = &growth{}
		d.growth[x.stack] = g
		p.growing++
	}
	if g.now += x.bytes; !g.changed {
		g.changed, d.changed = true, append(d.changed, x.stack)
	}
	return true
}

// device returns the steps on a device, made if need be.
func (p *process) device(index int32) *device {
	d := p.devices[index]
	if d == nil {
		d = &device{growth: map[uint64]*growth{}, current: span{number: p.steps + 1, begin: p.began}}
		p.devices[index] = d
	}
	return d
}

// hold counts bytes that are in use without having been made in a step.
func (d *device) hold(bytes int64) {
	d.inuse += bytes
	d.current.PeakBytes, d.current.InuseBytes = max(d.current.PeakBytes, d.inuse), d.inuse
}

// end adds the step under way to the last ones.
func (d *device) end(time uint64) {
	d.current.end = time
	d.total.Sum(&d.current.Moved)
	if d.last = append(d.last, d.current); len(d.last) >= 2*MaxLast {
		d.last = slices.Clone(d.shown())
	}
}

// shown returns the last MaxLast steps.
func (d *device) shown() []span { return d.last[max(len(d.last)-MaxLast, 0):] }

// noteGrowth notes how much stacks hold where a step begins. With note the figures become
// the newer ones that growth counts from, and the newer ones the older; with restart
// counting begins anew.
func (d *device) noteGrowth(note, restart bool) {
	for _, stack := range d.changed {
		g := d.growth[stack]
		g.last, g.changed = g.now, false
	}
	d.changed = d.changed[:0]
	if restart {
		clear(d.growth)
	}
	if !note {
		return
	}
	for stack, g := range d.growth {
		g.older, g.newer = g.newer, g.last
		if *g == (growth{}) {
			delete(d.growth, stack)
		}
	}
}
