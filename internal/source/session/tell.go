package session

import (
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// Tell calls more with each traced process that has not ended, and with what is known of who
// it belongs to, and reports what is returned beyond that. more does not wait.
func (s *store) Tell(more func(event.Process, snapshot.Who) snapshot.Who) {
	known := map[event.Process]snapshot.Who{}
	s.mu.Lock()
	for id := range s.state.Living {
		known[id] = state.WhoOf(s.state, id)
	}
	s.mu.Unlock()
	for id, who := range known {
		if now := who.Learn(more(id, who)); now != who {
			s.apply(&record.Process{Process: id, Who: now})
		}
	}
}
