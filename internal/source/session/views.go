package session

import (
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// Snapshot returns the memory in use now. Collection goes on: the lock is held only to copy figures.
func (s *Session) Snapshot(want state.Want) *snapshot.Snapshot { return s.View(want).Snapshot() }

// View copies the figures of a Snapshot.
func (s *Session) View(want state.Want) *state.View { return s.look(want, false) }

// Report returns a View. If every process is traced, it then forgets the processes that have ended, so
// later views do not show them.
func (s *Session) Report(want state.Want) *state.View { return s.look(want, true) }

// Totals returns the current sums, which the caller must not change. It does not wait for stacks and
// names: the session looks up missing names within a second, for the next call.
func (s *Session) Totals() *state.Totals {
	s.keeper.namesWanted.Store(true)
	s.ask()
	s.catchUp()
	return s.view(state.Want{Totals: true}, false).Totals()
}

func (s *Session) look(want state.Want, report bool) *state.View {
	s.ask()
	s.heaps.look(want.Holders)
	s.wait()
	s.name()
	v := s.view(want, report)
	if !v.HasAllStacks() { // an event came after wait
		s.wait()
		s.mu.Lock()
		s.state.AddStacks(v)
		s.mu.Unlock()
		s.name()
	}
	return v
}

func (s *Session) view(want state.Want, report bool) *state.View {
	lost := s.losses()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.applyLocked(lost)
	if !s.stopped {
		// As of the last event, since those after it may have happened already and not be here.
		s.applyLocked(moment(max(s.state.Seen(), s.state.Now()), false))
	}
	v := s.state.View(want)
	if report {
		s.applyLocked(&record.Reported{})
	}
	return v
}
