package session

import (
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
)

// reapInterval is how often processes are looked for whose end went unseen.
const reapInterval = time.Second

// A reaper ends processes whose exit event was lost, so that no trace waits
// for ever. A process must be gone at two looks in a row: by then an event that
// was not lost has come.
type reaper struct {
	last time.Time
	gone map[uint32]bool
}

// reap looks, unless it did lately. It is for the goroutine that handles events.
func (h handler) reap(now time.Time) {
	r := &h.Session.reaper
	if now.Sub(r.last) < reapInterval {
		return
	}
	r.last = now
	h.mu.Lock()
	var gone []uint32
	for pid := range h.procs.alive {
		if ended(int(pid)) {
			gone = append(gone, pid)
		}
	}
	h.mu.Unlock()
	before := r.gone
	r.gone = map[uint32]bool{}
	for _, pid := range gone {
		r.gone[pid] = true
		if before[pid] {
			h.end(pid, now)
		}
	}
}

// end does what the lost exit event would have done.
func (h handler) end(pid uint32, now time.Time) {
	e := event.Event{Op: event.OpExit, Time: uint64(now.Sub(h.boot)), Proc: event.Process{PID: pid}}
	h.mu.Lock()
	defer h.mu.Unlock()
	for t := range h.ledger.Processes {
		if t.Proc.PID == pid && !t.Exited {
			e.Proc = t.Proc
			h.ledger.Apply(&e)
		}
	}
	h.procs.event(&e)
}
