// Package state is what the records of a trace add up to: who holds how much
// memory, and since which call. It is pure: no clock, no file, no process; the
// same records give the same state. What it needs from the outside it wants
// (see Wants), and gets as records.
//
// A State is not safe for concurrent use. A View that was taken of it is.
package state

import (
	"github.com/gpumemtrace/gpumemtrace/internal/account"
	"github.com/gpumemtrace/gpumemtrace/internal/event"
	"github.com/gpumemtrace/gpumemtrace/internal/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/physical"
	"github.com/gpumemtrace/gpumemtrace/internal/record"
	"github.com/gpumemtrace/gpumemtrace/internal/stacks"
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
	stacks    *stacks.Table
	procs     processes
	accounts  *account.Accounts
	incidents incidents
	lost      record.Loss
	notes     []string

	now    record.Moment
	seen   uint64 // see Seen
	events uint64
	began  uint64 // time of the Cut that these records begin with, 0 for none
	// pending is a reading whose moment the events have not reached, read the
	// last one that was taken.
	pending, read *record.Reading
	wants         Wants
}

// New returns the State of no records. The first that it is given should be a
// Trace.
func New() *State {
	s := &State{
		stacks:   stacks.NewTable(),
		procs:    newProcesses(),
		accounts: account.New(),
	}
	s.layers(0)
	return s
}

// layers makes the ledgers of the layers, for so many live allocations each, 0 for
// the default. What a process holds at its peak is so in all layers at one moment.
func (s *State) layers(maxLive int) {
	s.physical = physical.New(ledger.Options{MaxLive: maxLive, MaxSites: maxSites})
	s.ledger = ledger.New(ledger.Options{MaxLive: maxLive, MaxSites: maxSites, Peaked: s.physical.Rows.Mark})
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
	switch r := r.(type) {
	case *event.Event:
		s.event(r)
	case *record.Moment:
		s.moment(r)
	case *record.Stack:
		s.stacks.Add(r)
	case *record.Name:
		r.Apply()
	case *record.Process:
		s.procs.learn(r, s.now.Time)
	case *record.Reading:
		s.settle()
		s.pending = r
	case *record.Loss:
		s.lost = *r
		s.incidents.complete(s, false)
	case *record.Note:
		s.note(r.Text)
	case *record.Sweep:
		s.sweep(r)
	case *record.Reported:
		if s.trace.All {
			s.forget(s.procs.drop(s.procs.ended))
		}
	case *record.Trace:
		if s.events == 0 {
			s.layers(r.MaxLive)
		}
		s.trace, s.procs.all, s.accounts.Initial = *r, r.All, r.Initial
	case *record.Cut:
		s.cut(r)
	}
}

func (s *State) event(e *event.Event) {
	if s.pending != nil && e.Time > s.pending.Time {
		s.settle()
	}
	s.events++
	s.now.Time, s.seen = max(s.now.Time, e.Time), max(s.seen, e.Time)
	switch {
	case e.Op >= event.OpClient:
		s.physical.Apply(e, s.trace.API(e.Outer))
		if s.ledger.Peak(e.Proc) == 0 {
			s.physical.Rows.Mark(e.Proc)
		}
	case e.Op >= event.OpFork && e.Op <= event.OpExit:
		s.ledger.Apply(e)
		s.physical.Apply(e, "")
	case e.Op <= event.OpExit && e.Op != event.OpNone:
		s.ledger.Apply(e)
		s.backed(e)
	}
	if s.procs.tells(e) {
		if _, known := s.procs.known[e.Proc]; !known || e.Op == event.OpExec {
			s.wants.Identities = append(s.wants.Identities, e.Proc)
		}
		for _, id := range s.procs.event(e) {
			s.ended(id, e)
		}
	}
	s.failure(e)
}

// backed tells the physical layer which device an allocation is on: the memory that
// its call took from the kernel driver is there.
func (s *State) backed(e *event.Event) {
	if e.Op != event.OpAlloc && e.Op != event.OpHandleCreate || e.Kind.Class() != event.ClassDevice || !s.physical.Asks() {
		return
	}
	device := e.Device
	if device == event.NoDevice {
		device = s.ledger.DeviceOf(e.Proc, e.Ctx)
	}
	s.physical.Backs(e.Proc, e.TID, device)
}

// siteOf is the call site of one event.
func siteOf(e *event.Event) ledger.SiteKey {
	return ledger.SiteKey{Proc: e.Proc, Stack: e.Stack, API: e.API, Outer: e.Outer, Kind: e.Kind, Device: e.Device}
}

// ended follows the end of a process, which e tells: by being its exit, or by
// showing that its exit was lost.
func (s *State) ended(id event.Process, e *event.Event) {
	if e.Op != event.OpExit || e.Proc != id {
		exit := &event.Event{Op: event.OpExit, Time: e.Time, Proc: id}
		s.ledger.Apply(exit)
		s.physical.Apply(exit, "")
	}
	if s.trace.All {
		s.ledger.Release(id)
		s.physical.Rows.Release(id)
	}
	s.forget(s.procs.end(id, e.Time, s.ledger.Active(id) || s.physical.Rows.Active(id)))
}

// forget drops all that is known of processes.
func (s *State) forget(dropped []event.Process) {
	for _, id := range dropped {
		s.ledger.Forget(id)
		s.physical.Forget(id)
	}
	s.accounts.Forget(dropped...)
}

func (s *State) moment(m *record.Moment) {
	s.now = record.Moment{Time: max(s.now.Time, m.Time), Slept: m.Slept, Drained: m.Drained}
	if m.Drained {
		s.seen = max(s.seen, m.Time)
	}
	if m.Drained || s.pending != nil && m.Time > s.pending.Time {
		s.settle()
	}
	s.incidents.advance(s)
}

// settle takes the pending reading: the events have reached its moment, or
// nobody waits for them any longer.
func (s *State) settle() {
	r := s.pending
	if r == nil {
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
		} else {
			for h := range s.ledger.Holdings(id) {
				p.GPUs, p.Held = append(p.GPUs, physical.GPU{Instance: -1, Ordinal: h.Device}), append(p.Held, h.Bytes)
			}
		}
		read = append(read, p)
	}
	s.accounts.Observe(r, read)
	s.incidents.observe(s)
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
	ids := map[uint64]bool{}
	for site := range s.ledger.Sites {
		ids[site.Stack] = true
	}
	for site := range s.physical.Rows.Sites {
		ids[site.Stack] = true
	}
	for id := range s.incidents.stacks {
		ids[id] = true
	}
	referred := func(id uint64) bool { return ids[id] }
	if r.Drop {
		s.stacks.Drop(referred)
	} else {
		s.stacks.Doom(referred)
	}
}

// cut begins afresh: records before were dropped, and what follows rebuilds what
// was live.
func (s *State) cut(r *record.Cut) {
	boot := s.trace.Boot
	*s = *New()
	s.began = r.Time
	s.trace.Boot = boot
}
