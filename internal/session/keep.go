package session

import (
	"fmt"
	"reflect"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
	"github.com/gpumemtrace/gpumemtrace/internal/proc"
	"github.com/gpumemtrace/gpumemtrace/internal/record"
)

const (
	keepInterval = 100 * time.Millisecond
	// secondly is how often processes are looked for whose end went unseen, and
	// what the sources know is put into a recording.
	secondly = time.Second
	// inFlight is more than the time between the kernel side's decision which
	// stack an event names and its place in the ring buffer.
	inFlight = uint64(time.Second)
)

// keep does what no event brings about, until end is closed.
func (s *Session) keep(end <-chan struct{}) {
	tick := time.NewTicker(keepInterval)
	defer tick.Stop()
	var sweeper sweeper
	var reaper reaper
	var last time.Time
	var failed bool // the recording has, and the user knows
	for {
		select {
		case <-end:
			return
		case now := <-tick.C:
			s.sweep(&sweeper)
			due := now.Sub(last) >= secondly
			if due {
				last = now
				s.reap(&reaper)
				failed = failed || s.recordingFails()
			}
			if due && s.writer != nil || s.hasIncidents() {
				s.run.Go(s.spell)
			}
		}
	}
}

// spell tells what a recording, and a report of an incident, must have that
// snapshots alone ask for. It is done once at a time.
func (s *Session) spell() {
	if s.spelling.CompareAndSwap(false, true) {
		defer s.spelling.Store(false)
		s.tell()
		s.report(false)
	}
}

// tell has the sources tell what they know of the records so far: stacks, names,
// while they can be read, and what was lost.
func (s *Session) tell() {
	s.frames.Settle()
	s.name()
	// A Loss also completes incidents. One that says nothing new would fill the
	// recording of an idle trace.
	if lost := s.losses(); s.hasIncidents() || !reflect.DeepEqual(lost, s.told) {
		s.told = lost
		s.apply(lost)
	}
}

// recordingFails warns of a recording that its disk does not take, and tells
// whether there is one.
func (s *Session) recordingFails() bool {
	if s.writer == nil || s.writer.Err() == nil {
		return false
	}
	s.warn(fmt.Sprintf("the recording has a gap: %v", s.writer.Err()))
	return true
}

func (s *Session) hasIncidents() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.HasIncidents()
}

// report hands out the incidents that are known in full; all also those of
// which more might come.
func (s *Session) report(all bool) {
	s.mu.Lock()
	incidents := s.state.Incidents(all)
	s.mu.Unlock()
	for _, in := range incidents { // none where nobody wants them
		s.opts.OutOfMemory(in)
	}
}

// A sweeper is between the two steps of a record.Sweep.
type sweeper struct {
	since uint64 // CLOCK_MONOTONIC from which on the doomed are told again, 0 while that is not so
}

// sweep drops the stacks that nothing refers to, once there are many. Telling
// the kernel side of tens of thousands takes tens of milliseconds: s.mu is not
// held meanwhile.
func (s *Session) sweep(w *sweeper) {
	s.mu.Lock()
	if w.since != 0 && s.state.Seen() >= w.since+inFlight {
		w.since = 0
		s.applyLocked(&record.Sweep{Drop: true})
	}
	if w.since != 0 || !s.state.WantsSweep() {
		s.mu.Unlock()
		return
	}
	s.applyLocked(&record.Sweep{})
	ids, pids := s.state.Doomed()
	s.mu.Unlock()
	s.tracer.ForgetStacks(ids)
	for pid := range pids {
		s.frames.Invalidate(int(pid))
	}
	w.since = monotonic()
}

// A reaper ends processes whose exit event was lost, so that no trace waits
// for ever. A process must be gone at two looks in a row: by then an event that
// was not lost has come.
type reaper struct {
	gone map[event.Process]bool
}

// reap looks.
func (s *Session) reap(r *reaper) {
	var living []event.Process
	s.mu.Lock()
	for id, named := range s.state.Living {
		living = append(living, id)
		if !named {
			s.frames.Identify(id) // there was no room when it was first seen
		}
	}
	s.mu.Unlock()
	before := r.gone
	r.gone = map[event.Process]bool{}
	for _, id := range living {
		if !gone(id) {
			continue
		}
		r.gone[id] = true
		if before[id] {
			s.apply(&event.Event{Op: event.OpExit, Time: monotonic(), Proc: id})
			s.frames.Ended(int(id.PID))
		}
	}
}

// identify returns who has a PID now.
func identify(pid int) (event.Process, error) {
	ticks, err := proc.StartTicks(pid)
	return event.Process{PID: uint32(pid), Start: ticks * event.StartUnit}, err
}

// gone tells whether a process has ended, whoever has its PID.
func gone(id event.Process) bool {
	if proc.Ended(int(id.PID)) {
		return true
	}
	now, err := identify(int(id.PID))
	return err == nil && now != id
}
