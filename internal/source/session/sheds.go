package session

import (
	"errors"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// sheds are the consumers whose calls have no stacks at present, with the reasons for the user.
type sheds struct {
	mu   sync.Mutex
	why  map[probes.Consumer]string
	grew atomic.Bool // a consumer was added: sweep stacks without a reference, even if they are few
}

// set sets the reason for a consumer, "" for none.
func (s *sheds) set(c probes.Consumer, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if delete(s.why, c); why != "" {
		s.why[c] = why
		s.grew.Store(true)
	}
}

func (s *sheds) notes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Values(s.why))
}

// Shed sets which calls of a process or a user get no stack from now on. Until they get stacks again,
// views show the reason. Totals stay exact. A process that has ended sheds nothing. One goroutine may
// call Shed.
func (s *Session) Shed(of probes.Consumer, what probes.Shed, why string) error {
	err := s.tracer.Shed(of, what)
	if errors.Is(err, os.ErrNotExist) {
		what, err = probes.ShedNothing, nil
	}
	if err != nil {
		return err
	}
	if what == probes.ShedNothing {
		why = ""
	}
	s.sheds.set(of, why)
	return nil
}

// A Cost is the cost of a user or a process.
type Cost struct {
	probes.Cost
	Name string // of the process, "" for a user
	Live int64  // allocations
}

// Costs returns the costs so far of each user and each traced process. It also returns the processor
// time that it took to read the events of all of them.
func (s *Session) Costs() (costs []Cost, reading time.Duration) {
	type held struct {
		name string
		live int64
	}
	processes := map[int]held{}
	s.Read(func(st *state.State) {
		for _, p := range st.Processes() {
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
