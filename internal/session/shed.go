package session

import "github.com/gpumemtrace/gpumemtrace/probes"

// Shed says of which calls no stack is taken from here on, and why, for people: what
// is shown says so while it is so. Totals stay as they are. It is for one goroutine.
func (s *Session) Shed(what probes.Shed, why string) error {
	if err := s.tracer.Shed(what); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shed = ""; what != probes.ShedNothing {
		s.shed = why
		s.shrink = true
	}
	return nil
}

// NotSeen returns which processes use CUDA and are not traced, or not in full.
func (s *Session) NotSeen() []probes.NotSeen { return s.tracer.NotSeen() }

// shedNote returns what Shed was given, "" for nothing.
func (s *Session) shedNote() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shed
}
