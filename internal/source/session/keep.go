package session

import (
	"fmt"
	"reflect"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/source/clock"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
	"github.com/gpumemtrace/gpumemtrace/internal/source/rounds"
)

const (
	keepInterval = 200 * time.Millisecond
	// secondly is how often processes are looked for whose end went unseen, and
	// what the sources know is put into a recording.
	secondly = time.Second
	// inFlight is more than the time between the kernel side's decision which
	// stack an event names and its place in the ring buffer.
	inFlight = uint64(time.Second)
)

// keep does what no event brings about, until end is closed.
func (s *Session) keep(end <-chan struct{}) {
	tick := time.NewTimer(clock.Until(keepInterval))
	defer tick.Stop()
	var sweeper sweeper
	var reaper reaper
	var last time.Duration // the second in which was done what is each second
	for {
		select {
		case <-end:
			return
		case <-tick.C:
			tick.Reset(clock.Until(keepInterval))
			s.sweep(&sweeper)
			second := clock.Monotonic() / secondly
			due := second != last
			if due {
				last = second
				s.reap(&reaper)
				s.allocated(monotonic(), nil)
				s.recordingFails()
			}
			if due && (s.recorder() != nil || s.figured.Swap(false)) || s.hasIncidents() {
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
		s.meter.Do(0, func() {
			s.tell()
			s.report(false)
		})
	}
}

// tell has the sources tell what they know of the records so far: stacks, names,
// while they can be read, and for a recording or an incident what was lost.
func (s *Session) tell() {
	s.settle()
	s.name()
	if s.recorder() == nil && !s.hasIncidents() {
		return // who looks tells that
	}
	// A Loss also completes incidents. One that says nothing new would fill the
	// recording of an idle trace.
	if lost := s.losses(); s.hasIncidents() || !reflect.DeepEqual(lost, s.told) {
		s.told = lost
		s.apply(lost)
	}
}

// recordingFails warns of a recording that its disk does not take, once for each.
func (s *Session) recordingFails() {
	w := s.recorder()
	if w == nil || w.Err() == nil {
		return
	}
	s.mu.Lock()
	told := s.failing
	s.failing = true
	s.mu.Unlock()
	if !told {
		s.warn(fmt.Sprintf("the recording has a gap: %v", w.Err()))
	}
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
	if w.since != 0 || !s.shrink && !s.state.WantsSweep() {
		s.mu.Unlock()
		return
	}
	s.shrink = false
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
	round rounds.Rounds[event.Process]
	gone  map[event.Process]bool // at the last look
}

// reapAtOnce bounds the processes that are looked at in one second.
const reapAtOnce = 32

// reap looks.
func (s *Session) reap(r *reaper) {
	for _, id := range r.round.Next(reapAtOnce, func() []event.Process { return s.living(r) }) {
		if !gone(id) {
			delete(r.gone, id)
			continue
		}
		if r.gone[id] {
			e := &event.Event{Op: event.OpExit, Time: monotonic(), Proc: id}
			s.ended(e)
			s.apply(e)
			s.frames.Ended(int(id.PID))
		}
		r.gone[id] = true
	}
}

// living returns the processes of a new round. Those that are in none any more need
// not be remembered.
func (s *Session) living(r *reaper) (living []event.Process) {
	before := r.gone
	r.gone = map[event.Process]bool{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, named := range s.state.Living {
		living = append(living, id)
		if before[id] {
			r.gone[id] = true
		}
		if !named {
			s.frames.Identify(id) // there was no room when it was first seen
		}
	}
	return living
}

// gone tells whether a process has ended, whoever has its PID.
func gone(id event.Process) bool {
	return proc.EndedSince(int(id.PID), id.Ticks())
}
