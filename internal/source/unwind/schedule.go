package unwind

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// maxScheduled bounds the processes that wait to be analysed. A process beyond it is
// analysed when its stacks reach unknown code.
const maxScheduled = 8192

// maxFresh bounds the new mappings of one process that are analysed one by one.
const maxFresh = 64

// atOnce bounds the processes that are analysed in one round. Ended processes are forgotten
// between rounds.
const atOnce = 8

// A schedule has the processes to analyse, with the time of each, and those that ended.
// Users are served in turn, so that a user with many processes does not delay the others.
type schedule struct {
	mu      sync.Mutex
	due     map[int]time.Time
	fresh   map[int][]proc.Mapping // new mappings of processes that are known
	users   map[int]uint16         // of the processes in due and in fresh
	last    uint16                 // the user whose turn was last
	ended   []int
	dropped atomic.Uint64 // processes that found no room

	wake chan struct{}
}

func newSchedule() *schedule {
	return &schedule{due: make(map[int]time.Time), fresh: make(map[int][]proc.Mapping), users: make(map[int]uint16), wake: make(chan struct{}, 1)}
}

// Changed says that pid has new mappings: it is analysed again after delay, together with
// changes until then. A process whose stack capture is off is not analysed: its first
// stack after that requests an analysis. Changed does not block.
func (u *Unwinder) Changed(pid int, delay time.Duration) {
	s := u.schedule
	user, shed := u.opts.users.userOf(pid)
	if shed {
		return
	}
	s.mu.Lock()
	at := time.Now().Add(delay)
	switch old, ok := s.due[pid]; {
	case ok && old.Before(at):
	case !ok && len(s.due) >= maxScheduled:
		s.dropped.Add(1)
	default:
		s.due[pid], s.users[pid] = at, user
	}
	s.mu.Unlock()
	if delay == 0 {
		s.nudge()
	}
}

// Mapped says that pid has the new mapping m, which is analysed at once. Reading all of its
// mappings takes longer, and follows after delay. Mapped does not block.
func (u *Unwinder) Mapped(pid int, m proc.Mapping, delay time.Duration) {
	s := u.schedule
	user, shed := u.opts.users.userOf(pid)
	if shed {
		return
	}
	s.mu.Lock()
	if known := s.fresh[pid]; len(known) < maxFresh && (known != nil || len(s.fresh) < maxScheduled) {
		s.fresh[pid], s.users[pid] = append(known, m), user
	}
	s.mu.Unlock()
	u.Changed(pid, delay)
	s.nudge()
}

// Ended says that pid has ended or replaced its image: it is not analysed any more. Ended
// does not block.
func (u *Unwinder) Ended(pid int) {
	s := u.schedule
	s.mu.Lock()
	delete(s.due, pid)
	delete(s.fresh, pid)
	delete(s.users, pid)
	if len(s.ended) < maxScheduled { // the cleanup finds those beyond it
		s.ended = append(s.ended, pid)
	}
	s.mu.Unlock()
	s.nudge()
}

func (s *schedule) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// next removes and returns what is due. It returns few processes at a time, so that an
// ended process does not wait for the analysis of many. fresh are new mappings of
// processes that are not due.
func (s *schedule) next(now time.Time) (ended, due []int, fresh map[int][]proc.Mapping) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ended, s.ended = s.ended, nil
	fresh = make(map[int][]proc.Mapping)
	for _, pid := range s.turns(now) {
		if at, ok := s.due[pid]; ok && !now.Before(at) {
			due = append(due, pid)
			delete(s.due, pid)
		} else {
			fresh[pid] = s.fresh[pid]
		}
		delete(s.fresh, pid)
		if _, waits := s.due[pid]; !waits {
			delete(s.users, pid)
		}
	}
	slices.Sort(due)
	if len(due)+len(fresh) == atOnce {
		s.nudge()
	}
	return ended, due, fresh
}

// turns returns the next processes to analyse, one of each user in turn.
func (s *schedule) turns(now time.Time) (pids []int) {
	of := map[uint16][]int{}
	for pid, at := range s.due {
		if !now.Before(at) {
			of[s.users[pid]] = append(of[s.users[pid]], pid)
		}
	}
	for pid := range s.fresh {
		if at, ok := s.due[pid]; !ok || now.Before(at) {
			of[s.users[pid]] = append(of[s.users[pid]], pid)
		}
	}
	users := slices.Sorted(maps.Keys(of))
	next, _ := slices.BinarySearch(users, s.last+1)
	for len(users) > 0 && len(pids) < atOnce {
		next %= len(users)
		user := users[next]
		s.last = user
		pids = append(pids, of[user][0])
		if of[user] = of[user][1:]; len(of[user]) == 0 {
			users = slices.Delete(users, next, next+1)
		} else {
			next++
		}
	}
	return pids
}
