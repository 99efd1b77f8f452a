package state

import "github.com/gpumemtrace/gpumemtrace/internal/model/event"

// Afresh makes what was ever allocated, failed calls, peaks and training steps count from
// this moment on. Processes that have ended are shown no more.
func (s *State) Afresh() {
	s.forget(s.procs.drop(s.procs.ended))
	s.ledger.Afresh()
	s.physical.Rows.Afresh()
	s.tensors.Rows.Afresh()
	s.peaks = map[event.Process]*peak{}
	for t := range s.ledger.Processes {
		s.peaked(t.Proc)
	}
	s.steps.afresh()
	s.afresh = true
	s.touchAll()
}
