package session

import (
	"errors"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// Shed says of which calls of a process or a user no stack is taken from here on, and why,
// for people: what is shown says so while it is so. Totals stay as they are. Of a process
// that has ended nothing is shed. It is for one goroutine.
func (s *Session) Shed(of probes.Consumer, what probes.Shed, why string) error {
	err := s.tracer.Shed(of, what)
	if errors.Is(err, os.ErrNotExist) {
		what, err = probes.ShedNothing, nil
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if delete(s.shed, of); what != probes.ShedNothing {
		s.shed[of] = why
		s.shrink = true
	}
	return nil
}

// NotSeen returns which processes use CUDA and are not traced, or not in full.
func (s *Session) NotSeen() []probes.NotSeen { return s.tracer.NotSeen() }

// shedNotes returns what Shed was given of those of whom something is shed.
func (s *Session) shedNotes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Values(s.shed))
}

// A Cost is what a user or a process takes of the tracer.
type Cost struct {
	probes.Cost
	Name string // of a process
	Live int64  // allocations
}

// Costs returns what the users take whose processes are traced and what each of these
// processes takes, so far; and the processor time of reading events, of all together.
func (s *Session) Costs() (costs []Cost, reading time.Duration) {
	type held struct {
		name string
		live int64
	}
	processes := map[int]held{}
	s.Read(func(st *state.State) {
		for _, p := range st.Totals() {
			if !p.Exited {
				processes[p.PID] = held{p.Name, p.LiveObjects}
			}
		}
	})
	users := map[uint32]int{}
	for _, c := range s.tracer.Costs() {
		p := processes[c.PID]
		if c.PID == 0 {
			users[c.User] = len(costs)
		} else if i, ok := users[c.User]; ok { // users come first
			costs[i].Live += p.live
		}
		costs = append(costs, Cost{c, p.name, p.live})
	}
	return costs, s.tracer.Worked()
}
