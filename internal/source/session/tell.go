package session

import (
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// Tell calls more with what is known of who each process belongs to, and reports what is returned
// beyond that. more does not wait.
func (s *store) Tell(more func(snapshot.Who) snapshot.Who) {
	known := map[event.Process]snapshot.Who{}
	s.mu.Lock()
	for id := range s.state.Known {
		known[id] = state.WhoOf(s.state, id)
	}
	s.mu.Unlock()
	for id, who := range known {
		if now := who.Learn(more(who)); now != who {
			s.apply(&record.Process{Process: id, Who: now})
		}
	}
}
