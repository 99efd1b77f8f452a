package session

import (
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
	"github.com/gpumemtrace/gpumemtrace/internal/proc"
)

const (
	keepInterval = 100 * time.Millisecond
	// reapInterval is how often processes are looked for whose end went unseen.
	reapInterval = time.Second
)

// keep keeps the tables bounded and notices what no event told, until end is
// closed.
func (s *Session) keep(end <-chan struct{}) {
	tick := time.NewTicker(keepInterval)
	defer tick.Stop()
	var reaper reaper
	for {
		select {
		case <-end:
			return
		case now := <-tick.C:
			s.sweep()
			s.reap(&reaper, now)
		}
	}
}

// sweep drops the stacks that nothing refers to, once there are many. Telling
// the kernel side of tens of thousands takes tens of milliseconds: s.mu is not
// held meanwhile.
func (s *Session) sweep() {
	s.mu.Lock()
	if s.stacks.wantsDrop(s.seen) {
		s.stacks.drop(s.referred())
	}
	if !s.stacks.wantsSweep() {
		s.mu.Unlock()
		return
	}
	ids, pids := s.stacks.doom(s.referred())
	for pid := range pids {
		if _, lives := s.procs.current[pid]; !lives {
			delete(pids, pid)
		}
	}
	s.mu.Unlock()
	s.tracer.ForgetStacks(ids)
	for pid := range pids {
		s.capture.invalidate(pid)
	}
	s.mu.Lock()
	s.stacks.told(monotonic())
	s.mu.Unlock()
}

// referred are the stacks that something refers to. s.mu is held.
func (s *Session) referred() map[uint64]bool {
	ids := map[uint64]bool{}
	for site := range s.ledger.Sites {
		ids[site.Stack] = true
	}
	for _, id := range s.gpus.stackIDs() {
		ids[id] = true
	}
	return ids
}

// A reaper ends processes whose exit event was lost, so that no trace waits
// for ever. A process must be gone at two looks in a row: by then an event that
// was not lost has come.
type reaper struct {
	last time.Time
	gone map[event.Process]bool
}

// reap looks, unless it did lately.
func (s *Session) reap(r *reaper, now time.Time) {
	if now.Sub(r.last) < reapInterval {
		return
	}
	r.last = now
	s.mu.Lock()
	var living []event.Process
	for _, id := range s.procs.current {
		living = append(living, id)
		if s.procs.name(id) == "" {
			s.identity(id) // there was no room when it was first seen
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
			s.mu.Lock()
			s.ended(id, &event.Event{Time: monotonic(), Proc: id})
			s.mu.Unlock()
			s.capture.ended(id.PID)
		}
	}
}

// gone tells whether a process has ended, whoever has its PID.
func gone(id event.Process) bool {
	if proc.Ended(int(id.PID)) {
		return true
	}
	now, err := identify(int(id.PID))
	return err == nil && now != id
}
