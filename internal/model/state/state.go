// Package state is what the records of a trace add up to: who holds how much
// memory, and since which call. It is pure: no clock, no file, no process; the
// same records give the same state. What it needs from the outside it wants
// (see Wants), and gets as records.
//
// A State is not safe for concurrent use. A View that was taken of it is.
package state

import (
	"github.com/gpumemtrace/gpumemtrace/internal/model/account"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/physical"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
	"github.com/gpumemtrace/gpumemtrace/internal/model/tensors"
)

const (
	// maxSites bounds the call sites that keep counters. With stacks of 60
	// frames each has its own.
	maxSites = 3 << 14
	// maxNotes bounds the notes that are kept: the last ones.
	maxNotes = 100
)

// A State is what all records so far say.
type State struct {
	trace     record.Trace
	ledger    *ledger.Ledger   // of the driver layer
	physical  *physical.Ledger // of the physical layer
	tensors   *tensors.Ledger  // of the tensor layer
	telling   record.Tensors   // but for its Allocators
	peaks     map[event.Process]*peak
	stacks    *stacks.Table
	steps     *steps
	procs     processes
	accounts  *account.Accounts
	groups    *groups
	incidents incidents
	history   *history // nil unless Remember was called
	lost      record.Loss
	notes     []string

	now      record.Moment
	seen     uint64 // see Seen
	events   uint64
	applied  uint64 // records since the last Cut
	settled  uint64 // applied, when a reading was last compared
	swept    uint64 // applied, when a sweep last began
	began    uint64 // time of the Cut that these records begin with, 0 for none
	reported uint64 // CLOCK_MONOTONIC: when the last record.Reported was, 0 for never
	afresh   bool   // see Afresh
	// pending is a reading whose moment the events have not reached, read the
	// last one that was taken.
	pending, read *record.Reading
	// stated is what allocators say at a moment that the events have not reached.
	stated  *record.Tensors
	wants   Wants
	changes changes
	watcher func(ledger.Change) // nil for none
	places  func(tensors.Piece) // nil for none
}

// Watch has watcher, nil for none, hear of each change of what call sites of any layer
// hold, and of what of it lies in tensors (see Cached). What it is given is the state's
// own, to be read until the next record. It comes before the first record.
func (s *State) Watch(watcher func(ledger.Change)) {
	s.watcher = watcher
	s.layers(0)
}

// WatchPlaces has watcher, nil for none, hear of each piece of memory that comes to lie
// somewhere, and that ends; the end of a process ends none. It comes before the first
// record.
func (s *State) WatchPlaces(watcher func(tensors.Piece)) {
	s.places = watcher
	s.layers(0)
}

// WatchSteps has watcher, nil for none, hear of each training step that is seen to end,
// by device: those of a process in order, and those of several devices in any. The last
// ones are told again by a keyframe. It comes before the first record.
func (s *State) WatchSteps(watcher func(TrainingStep)) { s.steps.watcher = watcher }

// laid hears of where memory comes to lie, and ends.
func (s *State) laid(c tensors.Piece) {
	if c.Site == nil {
		s.steps.moved(&c)
	}
	if s.history != nil {
		s.history.laid(&c)
	}
	if s.places != nil {
		s.places(c)
	}
}

// New returns the State of no records. The first that it is given should be a
// Trace.
func New() *State {
	s := &State{
		stacks:   stacks.NewTable(),
		procs:    newProcesses(),
		accounts: account.New(),
		groups:   newGroups(),
	}
	s.steps = newSteps(s.stacks.Frames)
	s.layers(0)
	return s
}

// layers makes the ledgers of the layers, for so many live allocations each, 0 for
// the default. What a process holds at its peak is so in all layers at one moment.
func (s *State) layers(maxLive int) {
	bounds := ledger.Options{MaxLive: maxLive, MaxSites: maxSites, MaxEnded: maxEnded + 1, Changed: s.watcher, Touched: s.changes.touch, User: s.procs.user}
	bounds.Leaving = func(x *ledger.Site) { s.count(x, s.labelOf) }
	s.physical = physical.New(bounds)
	bounds.Leaving = func(x *ledger.Site) { s.count(x, s.label) }
	s.tensors = tensors.New(bounds)
	s.tensors.Laid, s.tensors.Layout = s.laid, s.history != nil || s.places != nil
	s.peaks = map[event.Process]*peak{}
	bounds.Peaked, bounds.Extents = s.peaked, s.tensors
	s.ledger = ledger.New(bounds)
	s.tensors.Over(s.ledger)
	s.tensors.Tell(&s.telling)
	s.stacks.User = s.procs.user
}

// Wants are what the state would be told.
type Wants struct {
	// Reading: the driver's figures, soon. Memory: those of each GPU too.
	Reading, Memory bool
	// Identities: names and programs of processes.
	Identities []event.Process
}

// Wants returns what is wanted since it was asked last, nil for nothing.
func (s *State) Wants() *Wants {
	if !s.wants.Reading && len(s.wants.Identities) == 0 {
		return nil
	}
	w := s.wants
	s.wants = Wants{}
	return &w
}

// Apply takes the next record into account.
func (s *State) Apply(r record.Record) {
	s.applied++
	switch r := r.(type) {
	case *event.Event:
		s.event(r)
	case *record.Moment:
		s.moment(r)
	case *record.Stack:
		s.stacks.Add(r)
		s.steps.told(r)
		s.changes.named = true
	case *record.Name:
		r.Apply()
		s.changes.named = true
	case *record.Process:
		s.procs.learn(r, s.now.Time)
		s.belongs(r.Process)
		s.changes.touch(r.Process)
	case *record.Reading:
		s.settle()
		s.pending = r
	case *record.Loss:
		s.lost = *r
		s.steps.late(s.now.Time)
		s.incidents.complete(s, false)
	case *record.Note:
		s.note(r.Text)
	case *record.Sweep:
		s.sweep(r)
	case *record.Reported:
		if s.trace.All {
			s.forget(s.procs.drop(s.procs.ended))
		}
		s.reported = s.now.Time
		s.ledger.Reported()
		s.physical.Rows.Reported()
		s.tensors.Reported()
	case *record.Trace:
		if s.events == 0 {
			s.layers(r.MaxLive)
		}
		s.trace, s.procs.all, s.accounts.Initial = *r, r.All, r.Initial
		s.touchAll()
	case *record.Tensors:
		s.caughtUp()
		s.telling = record.Tensors{Sample: r.Sample, Min: r.Min}
		if s.stated = r; r.Time == 0 {
			s.caughtUp()
		}
	case *record.Cut:
		s.cut(r)
	case *record.Steps:
		s.steps.rebuild(r)
	}
}

func (s *State) event(e *event.Event) {
	if s.pending != nil && e.Time > s.pending.Time {
		s.settle()
	}
	if s.stated != nil && e.Time > s.stated.Time {
		s.caughtUp()
	}
	s.events++
	s.changes.touch(e.Proc)
	s.now.Time, s.seen = max(s.now.Time, e.Time), max(s.seen, e.Time)
	if s.history != nil {
		s.history.begin(e, s)
		defer s.history.end()
	}
	switch {
	case e.Op >= event.OpClient:
		s.physical.Apply(e, s.trace.API(e.Outer))
		if s.ledger.Peak(e.Proc) == 0 {
			s.physical.Rows.Mark(e.Proc)
		}
	case e.Op >= event.OpFork && e.Op <= event.OpExit:
		s.tensors.Apply(e)
		s.ledger.Apply(e)
		s.physical.Apply(e, "")
		if e.Op == event.OpExec {
			s.steps.forget(e.Proc)
		}
	case e.Space == event.SpaceTensor:
		s.tensor(e)
	case e.Op <= event.OpExit && e.Op != event.OpNone:
		s.tensors.During(e)
		switch e.Op {
		case event.OpContextDestroy, event.OpPrimaryRelease, event.OpPrimaryReset:
			s.ledger.ApplyEnd(e, s.evidence(e))
		default:
			s.ledger.Apply(e)
		}
		s.tensors.During(nil)
		s.moved(e)
		s.backed(e)
	}
	if s.procs.tells(e) {
		if _, known := s.procs.known[e.Proc]; !known || e.Op == event.OpExec {
			s.wants.Identities = append(s.wants.Identities, e.Proc)
		}
		if e.Op == event.OpFork {
			s.changes.touch(e.Child)
		}
		for _, id := range s.procs.event(e) {
			s.ended(id, e)
		}
	}
	s.failure(e)
}

// backed tells the physical layer of an allocation: the memory that its call took from
// the kernel driver is for that, and on its device.
func (s *State) backed(e *event.Event) {
	if e.Op != event.OpAlloc && e.Op != event.OpHandleCreate || e.Kind.Class() != event.ClassDevice || e.Result != event.Success || !s.physical.Took(e) {
		return
	}
	device := e.Device
	if device == event.NoDevice {
		device = s.ledger.DeviceOf(e.Proc, e.Ctx)
	}
	s.physical.Backs(e, device)
}

// ShareOwner returns the process whose object e, an OpObjectShare, shares, if it is known.
func (s *State) ShareOwner(e *event.Event) (event.Process, bool) { return s.physical.Owner(e) }

// evidence returns what the kernel driver's calls showed of a call that may end a context.
func (s *State) evidence(e *event.Event) *ledger.Evidence {
	ending := s.physical.Ends(e)
	return &ledger.Evidence{
		Freed: ending.Freed > 0, Gone: ending.Gone, Sole: s.sole(e),
		Lives: func(space event.Space, addr uint64) bool { return s.physical.Lives(e.Proc, space, addr) },
	}
}

// sole tells whether a process uses one GPU, and e is about that.
func (s *State) sole(e *event.Event) bool {
	labels := s.accounts.Labels(e.Proc)
	if len(labels) != 1 || len(s.physical.GPUs(e.Proc)) > 1 {
		return false
	}
	label, known := s.accounts.Label(e.Proc, e.Device)
	return !known || label == labels[0]
}

// siteOf is the call site of one event.
func siteOf(e *event.Event) ledger.SiteKey {
	return ledger.SiteKey{Proc: e.Proc, Stack: e.Stack, API: e.API, Outer: e.Outer, Kind: e.Kind, Device: e.Device}
}

// ended follows the end of a process, which e tells: by being its exit, or by
// showing that its exit was lost.
func (s *State) ended(id event.Process, e *event.Event) {
	s.changes.touch(id)
	if e.Op != event.OpExit || e.Proc != id {
		exit := &event.Event{Op: event.OpExit, Time: e.Time, Proc: id}
		s.ledger.Apply(exit)
		s.physical.Apply(exit, "")
		s.tensors.Apply(exit)
	}
	if s.trace.All {
		s.ends(id)
		s.ledger.Release(id)
		s.physical.Rows.Release(id)
		s.tensors.Release(id)
	}
	s.forget(s.procs.end(id, e.Time, s.ledger.Active(id) || s.physical.Rows.Active(id)))
}

// forget drops all that is known of processes.
func (s *State) forget(dropped []event.Process) {
	for _, id := range dropped {
		s.changes.touch(id)
		s.ends(id)
		s.ledger.Forget(id)
		s.physical.Forget(id)
		s.tensors.Forget(id)
		s.steps.forget(id)
		delete(s.peaks, id)
	}
	s.accounts.Forget(dropped...)
}

// ends says that what a process has, which has ended, lies nowhere any more.
func (s *State) ends(id event.Process) {
	if s.history == nil {
		return
	}
	for c := range s.tensors.Ends(id) {
		s.history.laid(&c)
	}
}

func (s *State) moment(m *record.Moment) {
	s.now = record.Moment{Time: max(s.now.Time, m.Time), Slept: m.Slept, Drained: m.Drained}
	if m.Drained {
		s.seen = max(s.seen, m.Time)
	}
	if m.Drained || s.pending != nil && m.Time > s.pending.Time {
		s.settle()
	}
	if m.Drained {
		s.caughtUp()
	}
	s.incidents.advance(s)
}

// settle takes the pending reading: the events have reached its moment, or
// nobody waits for them any longer.
func (s *State) settle() {
	r := s.pending
	if r == nil || !s.pays(&s.settled, len(s.procs.current)) {
		return
	}
	s.pending, s.read = nil, r
	var read []account.Process
	// A late target may hold memory without having made a call yet.
	for _, id := range s.procs.current {
		known := s.procs.known[id]
		p := account.Process{Process: id, FromStart: known.fromStart, Since: known.since, Seen: s.sees(id)}
		if p.Seen {
			p.Changed, p.GPUs, p.Held = s.physical.Changed(id), s.physical.GPUs(id), s.physical.Held(id)
			p.AllocatedGPUs, p.Allocated = s.allocated(id)
		} else {
			p.GPUs, p.Held = s.allocated(id)
		}
		read = append(read, p)
	}
	changed, all := s.accounts.Observe(r, read)
	for _, id := range changed {
		s.changes.touch(id)
	}
	if all {
		s.touchAll()
	}
	for _, id := range s.accounts.Left() {
		s.ledger.Unlisted(id, r.Begin)
	}
	s.incidents.observe(s)
}

// allocated returns what a process's allocations hold, by GPU.
func (s *State) allocated(id event.Process) (gpus []physical.GPU, bytes []int64) {
	for h := range s.ledger.Holdings(id) {
		gpus, bytes = append(gpus, physical.GPU{Instance: -1, Ordinal: h.Device}), append(bytes, h.Bytes)
	}
	return gpus, bytes
}

// sees tells whether the physical layer sees the calls of a process. Of one that
// was attached to late nothing may have been seen yet.
func (s *State) sees(id event.Process) bool {
	known := s.procs.known[id]
	return s.trace.Physical && (known != nil && !known.fromStart || s.physical.Seen(id))
}

func (s *State) note(text string) {
	s.notes = append(s.notes, text)
	if n := len(s.notes) - maxNotes; n > 0 {
		s.notes = append([]string(nil), s.notes[n:]...)
	}
}

// sweep makes room among the stacks.
func (s *State) sweep(r *record.Sweep) {
	if !r.Drop && !s.pays(&s.swept, s.stacks.Len()) {
		return
	}
	if r.Drop && !s.stacks.Sweeping() {
		return
	}
	ids := map[uint64]bool{}
	for site := range s.ledger.Sites {
		ids[site.Stack] = true
	}
	for site := range s.physical.Rows.Sites {
		ids[site.Stack] = true
	}
	for site := range s.tensors.Rows.Sites {
		ids[site.Stack] = true
	}
	s.tensors.Freed(func(_ event.Process, by tensors.Freer, _ tensors.Freed) bool {
		ids[by.By] = true
		return true
	})
	s.steps.refers(ids)
	for id := range s.incidents.stacks {
		ids[id] = true
	}
	if s.history != nil {
		for id := range s.history.stacks {
			ids[id] = true
		}
	}
	referred := func(id uint64) bool { return ids[id] }
	if r.Drop {
		s.stacks.Drop(referred)
		clear(s.groups.told)
	} else {
		s.stacks.Doom(referred)
	}
}

// pays tells whether so many records came since the last time that a piece of work, which
// takes a time in proportion to size, is small beside them. A tracer has it done much more
// seldom; a recording could have it done with each record.
func (s *State) pays(last *uint64, size int) bool {
	if s.applied-*last < uint64(size/64) {
		return false
	}
	*last = s.applied
	return true
}

// cut begins afresh: records before were dropped, and what follows rebuilds what
// was live.
func (s *State) cut(r *record.Cut) {
	if s.applied == 1 { // nothing came before it
		if s.began, s.applied = r.Time, 0; s.history != nil {
			s.history.since = r.Time
		}
		return
	}
	boot, watcher, places, stepped, history := s.trace.Boot, s.watcher, s.places, s.steps.watcher, s.history
	*s = *New()
	s.watcher = watcher
	s.WatchPlaces(places)
	s.WatchSteps(stepped)
	s.began = r.Time
	s.trace.Boot = boot
	if history != nil {
		s.Remember(history.max)
		s.history.since = r.Time
	}
}
