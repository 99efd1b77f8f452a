package session

import (
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// nameTries bounds how often names are looked for that came while others were
// named.
const nameTries = 3

// Snapshot returns who holds what now. Collection goes on: the lock is held only
// while figures are copied.
func (s *Session) Snapshot(want state.Want) *snapshot.Snapshot { return s.View(want).Snapshot() }

// View copies what Snapshot shows.
func (s *Session) View(want state.Want) *state.View { return s.look(want, false) }

// Report is a View that somebody keeps. Where every process is traced it is the
// last that shows the processes which ended before it.
func (s *Session) Report(want state.Want) *state.View { return s.look(want, true) }

// Totals are sums of now. They wait for no stack and no name: those that they lack are
// looked for within a second, for the next ones. Nobody changes them.
func (s *Session) Totals() *state.Totals {
	s.figured.Store(true)
	s.ask()
	s.current()
	s.summing.Lock()
	defer s.summing.Unlock()
	return s.view(state.Want{Totals: true, Sums: &s.sums}, false).Totals()
}

func (s *Session) look(want state.Want, report bool) *state.View {
	s.ask()
	s.allocated(monotonic(), nil)
	s.settle()
	s.name()
	v := s.view(want, report)
	if !v.Whole() { // events came meanwhile
		s.settle()
		s.mu.Lock()
		s.state.Complete(v)
		s.mu.Unlock()
		s.name()
	}
	return v
}

const (
	// catchUpPatience bounds the wait for events: several times as long as their reader takes.
	catchUpPatience = time.Second
	catchUpInterval = time.Millisecond
)

// catchUp waits until every event from before now has been told, or for as long as is
// bearable.
func (s *Session) catchUp() {
	at := monotonic()
	behind := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.awaited = max(s.awaited, at)
		return s.state.Seen() < at && !s.stopped
	}
	for end := time.Now().Add(catchUpPatience); behind() && time.Now().Before(end); {
		s.tracer.Wake()
		time.Sleep(catchUpInterval)
	}
}

// settle waits until the events so far, and their stacks, have been told, or for as long
// as is bearable. Stacks that are unwound from copies come as events do.
func (s *Session) settle() {
	s.frames.Drain()
	s.catchUp()
	s.frames.Settle()
}

func (s *Session) view(want state.Want, report bool) *state.View {
	lost := s.losses()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.applyLocked(lost)
	if !s.stopped {
		s.applyLocked(moment(monotonic(), false))
	}
	v := s.state.View(want)
	if report {
		s.applyLocked(&record.Reported{})
	}
	return v
}

// Reported leaves out of all that comes the processes that have ended, where every
// process is traced.
func (s *Session) Reported() { s.apply(&record.Reported{}) }

// AllowReports has no more than n failures for want of memory reported, of all since the
// trace began.
func (s *Session) AllowReports(n int) {
	s.mu.Lock()
	s.trace.Incidents = n
	s.mu.Unlock()
	s.retell()
}

// Seen is the time up to which every event was taken, in nanoseconds of
// CLOCK_MONOTONIC. It goes on, also while nothing happens, as long as who reads events
// does.
func (s *Session) Seen() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Seen()
}

// Read calls read with the state, which read must not keep or change. Collection
// waits meanwhile.
func (s *Session) Read(read func(*state.State)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopped {
		s.applyLocked(moment(monotonic(), false))
	}
	read(s.state)
}

// ask has the driver's figures read.
func (s *Session) ask() {
	if s.gpus != nil {
		s.gpus.Ask()
	}
}

// name has the names of what has none looked for, and of what may have one by
// now.
func (s *Session) name() {
	for try := range nameTries {
		s.mu.Lock()
		places, again := s.state.Unnamed()
		s.mu.Unlock()
		if try == 0 {
			places = append(places, again...)
		}
		if len(places) == 0 {
			return
		}
		s.frames.Name(places)
	}
}

// losses collects what the sources have lost.
func (s *Session) losses() *record.Loss {
	out := &record.Loss{Counters: append(s.tracer.Loss(), s.frames.Loss()...), Notes: s.frames.Notes()}
	if s.gpus != nil {
		out.Counters = append(out.Counters, s.gpus.Loss()...)
		if note := s.gpus.Note(); note != "" {
			out.Notes = append(out.Notes, note)
		}
	}
	out.Counters = append(out.Counters, s.recordingLoss()...)
	if s.opts.Loss != nil {
		out.Counters = append(out.Counters, s.opts.Loss()...)
	}
	out.Notes = append(out.Notes, s.tracer.Notes()...)
	out.Notes = append(out.Notes, s.shedNotes()...)
	return out
}
