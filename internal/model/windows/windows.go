// Package windows adds up the tensors of a trace that sees them in windows alone: what each
// stack made, how long that lived, and what each stack held at the peak of a training step.
//
// A tensor from before a window has no stack. What a process holds of those follows from the
// totals that its allocator reports. What becomes of a tensor that outlives its window is not
// known: it counts as outlived, and not as live.
//
// Peaks are those of whole training steps. Tensors are counted in the order of the steps
// (steps.Tracker), which may wait for stacks. Of a process without a whole step, the peak is
// the highest moment of a window.
//
// Like package ledger, it is pure and never fails.
package windows

import (
	"math"
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/steps"
	"github.com/gpumemtrace/gpumemtrace/internal/model/tensors"
)

const (
	// Before stands for the stacks of tensors from before a window.
	Before = math.MaxUint64
	// maxProcesses bounds the processes with tensors.
	maxProcesses = 1 << 12
	// maxLive bounds the tensors made in the open window that are live, of all processes.
	maxLive = 1 << 20
	// MaxSites bounds the stacks of all allocators, which processes share.
	MaxSites = 1 << 15
)

var causes loss.Causes

var (
	lossProcesses = causes.Add("window_processes_full", "tensors in windows that were not counted because there were too many processes")
	lossLive      = causes.Add("window_live_full", "tensors in windows whose lives were not followed because too many were live")
	lossSites     = causes.Add("window_stacks_full", "tensors in windows that are in no row because there were too many stacks")
	lossTotals    = causes.Add("window_totals_differ", "tensors made or freed in windows without being seen, as the allocator's own totals show")
)

// An Account adds up the windows of a trace. Its Window is zero if the trace has none.
type Account struct {
	record.Window
	Count int64  // windows that have begun
	Time  uint64 // nanoseconds of those that have ended
	began uint64 // when the last one began

	hadStep   bool // any window, a whole training step
	steps     *steps.Tracker
	processes map[event.Process]*process
	ended     []event.Process // in order of their end
	live      int             // tensors
	sites     int             // of all processes
	max       int             // sites
	seen      bool            // a tensor
	loss      *loss.Set
}

// A process has its allocators by device.
type process struct {
	id      event.Process
	sites   int
	devices map[int32]*device
	exited  bool
}

// New returns an Account without windows. It counts tensors in the order of a Tracker, which has
// none before the first Set.
func New(tracker *steps.Tracker) *Account { return newAccount(tracker, MaxSites) }

func newAccount(tracker *steps.Tracker, sites int) *Account {
	return &Account{steps: tracker, max: sites, processes: map[event.Process]*process{}, loss: loss.New(causes)}
}

// Active reports whether tensors are traced in windows.
func (a *Account) Active() bool { return a.Length != 0 }

// Seen reports whether there ever was a tensor in a window.
func (a *Account) Seen() bool { return a.seen }

// HadStep reports whether any window had a whole training step.
func (a *Account) HadStep() bool { return a.hadStep }

// Loss returns a counter for each cause of loss.
func (a *Account) Loss() []loss.Counter { return a.loss.Counters() }

// Set begins a window or ends the open one, at a time.
func (a *Account) Set(w record.Window, at uint64) {
	a.steps.OnTensor, a.steps.OnBegin = a.count, a.beginStep
	if a.Open {
		took := a.openFor(at)
		a.Time += took
		for id, p := range a.processes {
			a.end(id, p, took)
		}
	}
	if a.Window = w; w.Open {
		a.Count++
		a.began = at
	}
}

// openFor returns how long the open window has lasted.
func (a *Account) openFor(now uint64) uint64 { return max(now, a.began) - a.began }

// Complete reports whether the open window may end: each process that made or freed a tensor in
// it has had a whole training step in it, or had none in an earlier window.
func (a *Account) Complete() bool {
	if !a.Open {
		return true
	}
	for _, p := range a.processes {
		for _, d := range p.devices {
			if d.open && d.steps == 0 && (d.stepped || d.Windows == 1) {
				return false
			}
		}
	}
	return true
}

// Apply applies an event of the tensor layer. It has no effect outside of windows: the event is
// older than the window, or was late.
func (a *Account) Apply(e *event.Event) {
	if !a.Open || e.Size == 0 || e.Op != event.OpTensorAlloc && e.Op != event.OpTensorFree {
		return
	}
	a.seen = true
	d := a.device(e.Proc, e.Device)
	if d == nil {
		return
	}
	made := e.Op == event.OpTensorAlloc
	if made && e.Bare && d.sites[e.Stack] == nil { // it counts with those that have no stack
		without := *e
		without.Stack, e = 0, &without
	}
	if made {
		a.replace(d, e)
	}
	a.compareTotals(d, e, made)
	piece := tensors.Piece{Proc: e.Proc, From: e.Addr, To: e.Addr + e.Size, AllocatorDevice: e.Device, Ended: !made}
	if made {
		a.alloc(d, e)
		piece.Stack = e.Stack
	} else {
		piece.Stack = a.free(d, e)
	}
	a.steps.Apply(&piece, e)
}

// device returns the allocator of a process on a device, made if need be, for an event in the
// open window. It is nil if there is no room, or if the process has ended.
func (a *Account) device(id event.Process, index int32) *device {
	p := a.processes[id]
	if p == nil {
		if len(a.processes) >= maxProcesses {
			a.loss.Add(lossProcesses, 1)
			return nil
		}
		p = &process{id: id, devices: map[int32]*device{}}
		a.processes[id] = p
	}
	if p.exited {
		return nil
	}
	d := p.devices[index]
	if d == nil {
		d = &device{process: p, sites: map[uint64]*site{}, live: map[uint64]tensor{}}
		p.devices[index] = d
	}
	if !d.open {
		d.open, d.fresh = true, true
		d.Windows++
	}
	return d
}

// compareTotals compares what was seen with the totals that the allocator reports. Before the
// first event of a window, all of them are of tensors from before.
func (a *Account) compareTotals(d *device, e *event.Event, made bool) {
	fresh := d.fresh
	d.fresh = false
	if made {
		d.held += int64(e.Size)
	} else {
		d.held -= int64(e.Size)
	}
	if e.Handle == event.NoTotal {
		return
	}
	if e.Part != event.NoTotal {
		d.reserved = int64(e.Part)
	}
	unseen := int64(e.Handle) - d.held
	if unseen == 0 {
		return
	}
	if !fresh {
		a.loss.Add(lossTotals, 1)
	}
	d.held += unseen
	a.steps.Hold(e.Proc, e.Device, unseen)
	if s := a.site(d, Before); s != nil {
		d.add(s, unseen)
	}
}

// alloc begins a tensor.
func (a *Account) alloc(d *device, e *event.Event) {
	d.AllocObjects++
	d.AllocBytes += int64(e.Size)
	if s := a.site(d, e.Stack); s != nil {
		s.AllocObjects++
		s.AllocBytes += int64(e.Size)
		s.idle = -1
	}
	if a.live >= maxLive {
		a.loss.Add(lossLive, 1)
		return
	}
	a.live++
	d.live[e.Addr] = tensor{time: e.Time, size: e.Size, stack: e.Stack}
}

// replace ends the tensor that is where e makes one: its end was not seen.
func (a *Account) replace(d *device, e *event.Event) {
	if old, there := d.live[e.Addr]; there {
		delete(d.live, e.Addr)
		a.live--
		d.held -= int64(old.size)
		a.steps.Apply(&tensors.Piece{Proc: e.Proc, From: e.Addr, To: e.Addr + old.size, Stack: old.stack, AllocatorDevice: e.Device, Ended: true}, nil)
	}
}

// free ends a tensor, and returns its stack.
func (a *Account) free(d *device, e *event.Event) uint64 {
	x, ok := d.live[e.Addr]
	if !ok {
		return Before
	}
	delete(d.live, e.Addr)
	a.live--
	if s := d.sites[x.stack]; s != nil {
		life := time.Duration(max(e.Time, x.time) - x.time)
		s.Freed++
		s.Life += life
		s.Longest = max(s.Longest, life)
	}
	return x.stack
}

// site returns the site of a stack, made if need be, nil if there is no room.
func (a *Account) site(d *device, stack uint64) *site {
	s := d.sites[stack]
	if s == nil {
		if a.sites >= a.max && !a.dropEnded() {
			a.loss.Add(lossSites, 1)
			return nil
		}
		s = &site{epoch: d.epoch}
		d.sites[stack] = s
		a.hold(d.process, 1)
	}
	return s
}

// dropEnded makes room: it drops the process that ended first, and reports whether there was one.
func (a *Account) dropEnded() bool {
	if len(a.ended) == 0 {
		return false
	}
	id := a.ended[0]
	for _, d := range a.processes[id].devices {
		for _, s := range d.sites {
			a.loss.Add(lossSites, uint64(s.AllocObjects))
		}
	}
	a.Forget(id)
	return true
}

// hold changes how many sites a process has.
func (a *Account) hold(p *process, n int) {
	p.sites += n
	a.sites += n
}

// SiteCount returns how many stacks all processes have.
func (a *Account) SiteCount() int { return a.sites }

// Sites yields how many stacks each living process has, in no order.
func (a *Account) Sites(yield func(event.Process, int) bool) {
	for id, p := range a.processes {
		if !p.exited && !yield(id, p.sites) {
			return
		}
	}
}

// count counts a tensor in the step under way.
func (a *Account) count(id event.Process, index int32, stack uint64, bytes int64) {
	p := a.processes[id]
	if p == nil || p.devices[index] == nil || !p.devices[index].open {
		return
	}
	d := p.devices[index]
	s := d.sites[stack]
	if s == nil && (bytes > 0 || stack == Before) {
		s = a.site(d, stack)
	}
	if s == nil {
		s = &site{epoch: d.epoch} // it is in no row
	}
	if bytes > 0 {
		d.step(s, bytes)
	}
	d.add(s, bytes)
}

// beginStep begins a training step. whole says that the one before was one.
func (a *Account) beginStep(id event.Process, whole bool) {
	if p := a.processes[id]; p != nil {
		for _, d := range p.devices {
			if d.open {
				d.beginStep(whole)
				a.hadStep = a.hadStep || whole
			}
		}
	}
}

// end ends the open window of a process, of which it saw so much.
func (a *Account) end(id event.Process, p *process, took uint64) {
	a.steps.Interrupt(id)
	for _, d := range p.devices {
		if !d.open {
			continue
		}
		a.live -= len(d.live)
		d.end(took)
		if a.sites > MaxSites/2 {
			before := len(d.sites)
			d.shrink()
			a.hold(p, len(d.sites)-before)
		}
	}
}

// Exit ends the windows of a process that has ended. What was seen stays.
func (a *Account) Exit(id event.Process, now uint64) {
	if p := a.processes[id]; p != nil && !p.exited {
		a.end(id, p, a.openFor(now))
		p.exited = true
		a.ended = append(a.ended, id)
	}
}

// ReplaceImage ends the tensors of a process that replaced its image.
func (a *Account) ReplaceImage(id event.Process, now uint64) {
	if p := a.processes[id]; p != nil {
		a.end(id, p, a.openFor(now))
	}
}

// Forget drops everything about a process.
func (a *Account) Forget(id event.Process) {
	if p := a.processes[id]; p != nil {
		for _, d := range p.devices {
			a.live -= len(d.live)
		}
		a.hold(p, -p.sites)
		delete(a.processes, id)
		a.ended = slices.DeleteFunc(a.ended, func(x event.Process) bool { return x == id })
	}
}

// Reset makes everything count from now on. Tensors that are live are from before.
func (a *Account) Reset(now uint64) {
	for id := range a.processes {
		a.Forget(id)
	}
	a.Count, a.Time = 0, 0
	if a.Open {
		a.Count, a.began = 1, now
	}
}

// Stacks yields the stacks that an Account refers to.
func (a *Account) Stacks(yield func(id uint64) bool) {
	for _, p := range a.processes {
		for _, d := range p.devices {
			for stack := range d.sites {
				if !yield(stack) {
					return
				}
			}
		}
	}
}

// Keyframe yields the records that rebuild what lasts: a window that is open begins anew.
func (a *Account) Keyframe(now uint64, yield func(*record.Tensors)) {
	if !a.Active() {
		return
	}
	w := a.Window
	w.Open = false
	yield(&record.Tensors{Window: w})
	if a.Open {
		yield(&record.Tensors{Time: now, Window: a.Window})
	}
}
