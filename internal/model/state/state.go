// Package state adds up the records of a trace: who holds how much memory, and since which
// call. It is pure: no clock, no file, no process. The same records give the same state.
// It asks for figures from outside (Wants), and gets them as records.
//
// A State is the sum of all records so far. A View is a copy of its figures at one
// moment, made under the lock that guards the State. A snapshot.Snapshot is a View
// with names and call stacks, made without that lock; outputs see nothing else.
//
// A State is not safe for concurrent use. Several goroutines may read a View, but
// Snapshot and AddStacks write to it.
package state

import (
	holders "github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/account"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/physical"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
	"github.com/gpumemtrace/gpumemtrace/internal/model/steps"
	"github.com/gpumemtrace/gpumemtrace/internal/model/tensors"
	"github.com/gpumemtrace/gpumemtrace/internal/model/windows"
)

const (
	// maxSites bounds the call sites that keep counters. With stacks of 60
	// frames each has its own.
	maxSites = 3 << 14
	// maxNotes bounds the notes of the trace: the last ones stay.
	maxNotes = 100
)

// A State is the sum of all records so far. Its parts answer questions that concern them
// alone: their exported methods are the State's.
type State struct {
	clock
	*processes
	*gpus
	*incidents

	ledger   *ledger.Ledger   // of the driver layer
	physical *physical.Ledger // of the physical layer
	tensors  *tensors.Ledger  // of the tensor layer
	peaks    *peaks
	stacks   *stacks.Table
	steps    *steps.Tracker
	windows  *windows.Account // of tensors, if they are traced in windows
	accounts *account.Accounts
	groups   *groups
	heaps    heaps
	history  *history // nil unless Remember was called
	lost     record.Loss
	notes    []string

	events   uint64
	applied  uint64 // records since the last Cut
	compared pace   // of readings
	swept    pace
	began    uint64 // time of the Cut that these records begin with, 0 for none
	reported uint64 // CLOCK_MONOTONIC: when the last record.Reported was, 0 for never
	reset    bool   // Afresh was called
	// pending is a reading whose moment the events have not reached, read the last one
	// that was compared.
	pending, read *record.Reading
	// window begins or ends a window of tensors at a moment that the events have not reached.
	window *record.Tensors
	// categories are what tensors are for as the end of the recording knows it, nil where
	// that is not known: see LearnFrom.
	categories Categories
	// laterModules are the modules that the end of the recording knows.
	laterModules map[event.Process][]holders.Module
	wants        Wants
	rebuilding   rebuilding
	observers
}

// Observers are called with changes, each if it is set.
type observers struct {
	onChange func(*ledger.Site)
	onPiece  func(tensors.Piece)
	onStep   func(TrainingStep)
}

// Watch calls watcher, unless it is nil, with each change of the memory of a call site of
// any layer, and of how much of that memory lies in tensors (see Cached). The arguments belong to the
// state, and may be read until the next record. Watch comes before the first record.
func (s *State) Watch(watcher func(*ledger.Site)) { s.onChange = watcher }

// WatchPieces calls watcher, unless it is nil, with each piece of memory that comes to lie
// somewhere, and with each that ends; the end of a process ends none. It comes before the
// first record.
func (s *State) WatchPieces(watcher func(tensors.Piece)) {
	s.onPiece = watcher
	s.openLedgers(0)
}

// A TrainingStep is a training step that was seen to end.
type TrainingStep = steps.Step

// WatchSteps calls watcher, unless it is nil, with each training step that is seen to end,
// by device: those of a process in order, and those of several devices in any. The last
// ones are reported again by a keyframe. It comes before the first record.
func (s *State) WatchSteps(watcher func(TrainingStep)) { s.onStep, s.steps.OnStep = watcher, watcher }

// Remember makes the state remember where memory lies, and the latest n changes of it, for
// Want.Layout. It comes before the first record.
func (s *State) Remember(n int) {
	s.history = &history{max: n}
	s.tensors.Layout = true
}

// New returns the State of no records. The first that it is given should be a
// Trace.
func New() *State {
	s := &State{}
	s.init()
	return s
}

func (s *State) init() {
	s.processes = newProcesses()
	s.accounts = account.New()
	s.stacks = stacks.NewTable()
	s.steps = steps.New(s.stacks.Frames)
	s.steps.OnStep = s.onStep
	s.windows = windows.New(s.steps)
	s.gpus = &gpus{config: &s.trace, processes: s.processes, accounts: s.accounts}
	s.groups = newGroups(s.gpus, s.stacks)
	s.incidents = &incidents{state: s}
	s.heaps = newHeaps()
	s.openLedgers(0)
}

// openLedgers makes the ledgers of the layers, for so many live allocations each, 0 for
// the default. The figures of a process at its peak are of one moment in all layers.
func (s *State) openLedgers(maxLive int) {
	options := ledger.Options{MaxLive: maxLive, MaxSites: maxSites, MaxEnded: maxEnded + 1, Changed: s.changed, Leaving: s.groups.count}
	s.physical = physical.New(options)
	s.gpus.physical = s.physical
	s.physical.OnInherit = func(id event.Process) { s.peaks.follow(id, s.Held(id)) }
	s.tensors = tensors.New(options)
	s.tensors.Layout = s.history != nil || s.onPiece != nil
	s.peaks = &peaks{byProcess: map[event.Process]*peak{}, physical: s.physical, tensors: s.tensors}
	options.Extents = s.tensors.Follows
	options.Peaked = func(event.Process) bool { return false } // the driver's own memory counts, too: see peaks
	s.ledger = ledger.New(options)
	s.peaks.ledger = s.ledger
	s.tensors.SetDriver(s.ledger)
}

// layers returns the ledgers of the driver layer, of the tensor layer and of the physical
// layer.
func (s *State) layers() [3]*ledger.Ledger {
	return [...]*ledger.Ledger{s.ledger, s.tensors.Rows, s.physical.Rows}
}

// Wants are records that the state asks for.
type Wants struct {
	// Reading: the driver's figures, soon. Memory: those of each GPU too.
	Reading, Memory bool
	// Identities: names and programs of processes.
	Identities []event.Process
}

// Wants returns what the state asked for since the last call, nil for nothing.
func (s *State) Wants() *Wants {
	if !s.wants.Reading && len(s.wants.Identities) == 0 {
		return nil
	}
	w := s.wants
	s.wants = Wants{}
	return &w
}

// Apply adds the next record.
func (s *State) Apply(r record.Record) {
	s.applied++
	switch r := r.(type) {
	case *event.Event:
		s.applyEvent(r)
	case *record.Moment:
		s.applyMoment(r)
	case *record.Stack:
		s.addStack(r)
	case *record.Name:
		r.Apply()
	case *record.Process:
		s.processes.learn(r, s.now.Time)
	case *record.Reading:
		s.compare()
		s.pending = r
	case *record.Loss:
		s.lost = *r
		s.steps.GiveUp(s.now.Time)
		s.incidents.complete(false)
	case *record.Note:
		s.notes = append(s.notes, r.Text)
		if n := len(s.notes) - maxNotes; n > 0 {
			s.notes = append([]string(nil), s.notes[n:]...)
		}
	case *record.Sweep:
		s.sweep(r)
	case *record.Reported:
		if s.trace.All {
			s.forget(s.processes.drop(s.processes.ended))
		}
		s.reported = s.now.Time
		s.ledger.MarkReported()
		s.physical.Rows.MarkReported()
		s.tensors.Rows.MarkReported()
	case *record.Trace:
		if s.events == 0 {
			s.openLedgers(r.MaxLive)
		}
		s.trace, s.processes.all, s.accounts.Initial = *r, r.All, r.Initial
	case *record.Tensors:
		s.applyWindow()
		if s.window = r; r.Time == 0 || r.Window.Open {
			s.applyWindow()
		}
	case *record.Cut:
		s.cut(r)
	case *record.Part:
		s.rebuild(r)
	case *record.Heap:
		s.heap(r)
	case *record.Blocks:
		s.heaps.blocks(r)
	}
}

func (s *State) applyEvent(e *event.Event) {
	if s.pending != nil && e.Time > s.pending.Time {
		s.compare()
	}
	if s.window != nil && e.Time > s.window.Time {
		s.applyWindow()
	}
	s.rebuilding.over = true
	s.events++
	s.now.Time, s.seen = max(s.now.Time, e.Time), max(s.seen, e.Time)
	if s.history != nil {
		s.history.begin(e, s)
		defer s.history.end()
	}
	switch {
	case e.Op.Kernel():
		s.physical.Apply(e, s.trace.API(e.Outer))
		s.peaks.follow(e.Proc, s.Held(e.Proc))
	case e.Op >= event.OpFork && e.Op <= event.OpExit:
		s.tensors.Apply(e)
		s.ledger.Apply(e)
		s.physical.Apply(e, "")
		s.follow(e)
		if e.Op == event.OpExec {
			s.windows.ReplaceImage(e.Proc, e.Time)
			s.steps.Forget(e.Proc)
			s.heaps.forget(e.Proc)
		}
	case e.Op.Tensor() && s.windows.Active():
		s.windows.Apply(e)
	case e.Op.Tensor():
		s.tensors.Apply(e)
		s.applyPieces(e)
		s.peaks.tensorsChanged(e)
	case e.Op <= event.OpExit && e.Op != event.OpNone:
		switch e.Op {
		case event.OpContextDestroy, event.OpPrimaryRelease, event.OpPrimaryReset:
			s.ledger.ApplyEnd(e, s.evidence(e))
		default:
			s.ledger.Apply(e)
		}
		s.follow(e)
		if s.peaks.mayRise(e.Proc) {
			s.peaks.follow(e.Proc, s.Held(e.Proc))
		}
		s.linkBacking(e)
	}
	if s.processes.concerns(e) {
		if _, known := s.processes.known[e.Proc]; !known || e.Op == event.OpExec {
			s.wants.Identities = append(s.wants.Identities, e.Proc)
		}
		for _, id := range s.processes.apply(e) {
			s.endProcess(id, e)
		}
	}
	s.incidents.apply(e)
}

// changed follows a change of a call site of any layer.
func (s *State) changed(x *ledger.Site) {
	if s.onChange != nil {
		s.onChange(x)
	}
}

// follow tells the tensor layer what an event changed in the driver layer, nil for what shows
// without an event.
func (s *State) follow(e *event.Event) {
	s.tensors.Follow(e)
	s.applyPieces(nil)
}

// applyPieces follows memory that came to lie somewhere, or that ended, by an event of the tensor
// layer or, with nil, of another.
func (s *State) applyPieces(e *event.Event) {
	for p := range s.tensors.TakePieces {
		if p.Site == nil {
			s.steps.Apply(p, e)
		}
		if s.history != nil {
			s.history.addPiece(p)
		}
		if s.onPiece != nil {
			s.onPiece(*p)
		}
	}
}

// linkBacking says in the physical layer that the memory which the kernel driver handed out
// during the call of an allocation is for that allocation, and on its device.
func (s *State) linkBacking(e *event.Event) {
	if e.Op != event.OpAlloc && e.Op != event.OpHandleCreate || !s.physical.HasUnlinkedMemory(e) {
		return
	}
	kind, device := s.ledger.PlaceOf(e)
	if kind.Class() != event.ClassDevice || e.Result != event.Success {
		s.physical.DropUnlinked(e)
		return
	}
	if device == event.NoDevice {
		device = s.ledger.DeviceOf(e.Proc, e.Ctx)
	}
	s.physical.LinkAllocation(e, device)
}

// evidence returns the effects that the kernel driver's calls showed of a call that may end
// a context.
func (s *State) evidence(e *event.Event) *ledger.Evidence {
	ending := s.physical.ContextEnd(e)
	return &ledger.Evidence{
		Freed: ending.Freed > 0, Gone: ending.Gone, Sole: s.gpus.onlyOne(e),
		Lives: func(space event.Space, addr uint64) bool { return s.physical.IsBacked(e.Proc, space, addr) },
	}
}

// siteOf returns the call site of one event.
func siteOf(e *event.Event) ledger.SiteKey {
	return ledger.SiteKey{Proc: e.Proc, Stack: e.Stack, API: e.API, Outer: e.Outer, Kind: e.Kind, Device: e.Device}
}

// endProcess follows the end of a process. e is its exit, or shows that its exit was lost.
func (s *State) endProcess(id event.Process, e *event.Event) {
	if e.Op != event.OpExit || e.Proc != id {
		exit := &event.Event{Op: event.OpExit, Time: e.Time, Proc: id}
		s.ledger.Apply(exit)
		s.physical.Apply(exit, "")
		s.tensors.Apply(exit)
	}
	if s.trace.All {
		s.endPieces(id)
		s.ledger.Release(id)
		s.physical.Rows.Release(id)
		s.tensors.Release(id)
	}
	s.follow(nil)
	s.windows.Exit(id, e.Time)
	for _, child := range s.processes.children(id) {
		if s.Held(child).Total > 0 && s.processes.sameProgram(id, child) {
			s.processes.known[child].parentEnd = max(e.Time, 1)
		}
	}
	s.forget(s.processes.end(id, e.Time, s.ledger.Active(id) || s.physical.Rows.Active(id)))
}

// forget drops everything about processes.
func (s *State) forget(dropped []event.Process) {
	for _, id := range dropped {
		s.endPieces(id)
		s.ledger.Forget(id)
		s.physical.Forget(id)
		s.tensors.Forget(id)
		s.steps.Forget(id)
		s.windows.Forget(id)
		s.heaps.forget(id)
		delete(s.peaks.byProcess, id)
	}
	s.accounts.Forget(dropped...)
}

// endPieces adds to the history that the memory of an ended process lies nowhere any more.
func (s *State) endPieces(id event.Process) {
	if s.history == nil {
		return
	}
	for p := range s.tensors.PieceEnds(id) {
		s.history.addPiece(&p)
	}
}

func (s *State) applyMoment(m *record.Moment) {
	s.rebuilding.over = true
	s.now = record.Moment{Time: max(s.now.Time, m.Time), Slept: m.Slept, Drained: m.Drained}
	if m.Drained {
		s.seen = max(s.seen, m.Time)
	}
	if m.Drained || s.pending != nil && m.Time > s.pending.Time {
		s.compare()
	}
	if m.Drained {
		s.applyWindow()
	}
	s.incidents.advance()
}

// applyWindow begins or ends a window of tensors: the events have reached that moment. Those from
// before it are older than the window, and those after it are later.
func (s *State) applyWindow() {
	r := s.window
	if r == nil {
		return
	}
	s.window = nil
	if r.Window.Length != 0 {
		s.windows.Set(r.Window, r.Time)
	}
}

// compare compares the pending reading with the memory of processes: the events have reached
// its moment, or nothing waits for them any longer.
func (s *State) compare() {
	r := s.pending
	if r == nil || !s.compared.due(s.applied, len(s.processes.current)*(1+len(r.Devices)*len(r.Devices)/64)) {
		return
	}
	s.pending, s.read = nil, r
	var read []account.Process
	// A late target may hold memory without having made a call yet.
	for _, id := range s.processes.current {
		known := s.processes.known[id]
		p := account.Process{Process: id, FromStart: known.fromStart, Since: known.since, Seen: s.SeesDriverCalls(id)}
		if p.Seen {
			p.Changed, p.GPUs, p.Bytes = s.physical.Changed(id), s.physical.GPUs(id), s.physical.BytesByGPU(id)
			p.AllocatedGPUs, p.Allocated = s.allocated(id)
		} else {
			p.GPUs, p.Bytes = s.allocated(id)
		}
		read = append(read, p)
	}
	s.accounts.Observe(r, read)
	for _, id := range s.accounts.NewlyUnlisted() {
		if !s.physical.Suspended(id) { // else a restore brings its allocations back
			s.ledger.ApplyUnlisted(id, r.Begin)
			s.follow(nil)
		}
	}
	s.incidents.addReading()
}

// allocated returns what a process's allocations hold, by GPU.
func (s *State) allocated(id event.Process) (gpus []physical.GPU, bytes []int64) {
	for h := range s.ledger.UseByDevice(id) {
		gpus, bytes = append(gpus, physical.GPU{Instance: -1, Ordinal: h.Device}), append(bytes, h.Bytes)
	}
	return gpus, bytes
}

// sweep makes room among the stacks.
func (s *State) sweep(r *record.Sweep) {
	if r.Drop && !s.stacks.Sweeping() || !r.Drop && !s.swept.due(s.applied, s.stacks.Len()) {
		return
	}
	ids := map[uint64]bool{}
	add := func(id uint64) bool {
		ids[id] = true
		return true
	}
	for _, layer := range s.layers() {
		for site := range layer.Sites {
			add(site.Stack)
		}
	}
	s.tensors.Freed(func(_ event.Process, by tensors.Freer, _ tensors.Freed) bool { return add(by.By) })
	s.steps.Stacks(add)
	s.windows.Stacks(add)
	s.incidents.stacks(add)
	if s.history != nil {
		s.history.stacks(add)
	}
	referred := func(id uint64) bool { return ids[id] }
	if r.Drop {
		s.stacks.Drop(referred)
		clear(s.groups.uses)
	} else {
		s.stacks.Mark(referred)
	}
}

// A pace bounds how often a piece of work is done whose time grows with a size: only after
// so many records that it is small beside them. A tracer has it done much more seldom; a
// recording could have it done with each record.
type pace struct{ last uint64 }

func (p *pace) due(applied uint64, size int) bool {
	if applied-p.last < uint64(size/16) {
		return false
	}
	p.last = applied
	return true
}

// cut starts again: records before were dropped, and the next ones rebuild what was live.
func (s *State) cut(r *record.Cut) {
	if s.applied == 1 { // nothing came before it
		s.began, s.applied = r.Time, 0
	} else {
		old := *s
		*s = State{observers: old.observers, began: r.Time}
		s.trace.Boot = old.trace.Boot
		if old.history != nil {
			s.history = &history{max: old.history.max}
		}
		s.init()
	}
	if s.history != nil {
		s.history.since = r.Time
	}
}

// ResetCounts makes allocations, failed calls, peaks and training steps count from this moment
// on. Processes that have ended are shown no more.
func (s *State) ResetCounts() {
	s.forget(s.processes.drop(s.processes.ended))
	for _, layer := range s.layers() {
		layer.ResetCounts()
	}
	clear(s.peaks.byProcess)
	for _, id := range s.processes.current {
		s.peaks.follow(id, s.Held(id))
	}
	s.steps.Reset()
	s.windows.Reset(s.now.Time)
	s.reset = true
}

// loss returns a counter for each cause of loss: the sources', the ledgers', the rest.
func (s *State) loss() []loss.Counter {
	out := append(append([]loss.Counter(nil), s.lost.Counters...), s.heaps.loss()...)
	out = append(out, s.ledger.Loss()...)
	if s.trace.Physical {
		out = append(append(out, s.physical.Loss()...), s.accounts.Loss()...)
	}
	if s.tensors.Seen() {
		out = append(append(out, s.tensors.Loss()...), s.steps.Loss()...)
	}
	if s.windows.Active() {
		out = append(append(out, s.windows.Loss()...), s.steps.Loss()...)
	}
	out = append(append(out, s.stacks.Loss()...), lossUnknown.Counter(s.processes.refused), lossFolded.Counter(s.groups.folded))
	if s.trace.Incidents > 0 {
		out = append(out, lossSuppressed.Counter(s.incidents.suppressed))
	}
	return out
}
