package session

import (
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/source/clock"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
	"github.com/gpumemtrace/gpumemtrace/internal/source/rounds"
	"github.com/gpumemtrace/gpumemtrace/internal/source/work"
)

const (
	keepInterval = 200 * time.Millisecond
	// secondly is the time between two searches for processes whose end was missed, and
	// between two completions of a recording.
	secondly = time.Second
	// inFlight is longer than an event takes from the kernel side's choice of its stack to its
	// place in the ring buffer.
	inFlight = uint64(time.Second)
	// reapAtOnce bounds the processes that are checked in one second.
	reapAtOnce = 32
)

// A keeper does the work that no event starts.
type keeper struct {
	*sources
	meter *work.Meter
	reaper
	swept uint64 // CLOCK_MONOTONIC at which the kernel side forgot the doomed stacks, 0 if there are none

	completing  atomic.Bool // a goroutine runs complete
	lost        *record.Loss
	namesWanted atomic.Bool // totals were asked for: see Totals
}

// run works until end is closed. It runs the slow work in run.
func (k *keeper) run(end <-chan struct{}, run *sync.WaitGroup) {
	tick := time.NewTimer(clock.Until(keepInterval))
	defer tick.Stop()
	var last time.Duration // the second of the last secondly work
	for {
		select {
		case <-end:
			return
		case <-tick.C:
		}
		tick.Reset(clock.Until(keepInterval))
		k.sweep()
		second := clock.Monotonic() / secondly
		due := second != last
		if due {
			last = second
			k.reap()
			if err := k.recordingFailed(); err != nil {
				k.warn(fmt.Sprintf("the recording has a gap: %v", err))
			}
		}
		if due && (k.recorder() != nil || k.namesWanted.Swap(false)) || k.hasIncidents() {
			run.Go(func() {
				if k.completing.CompareAndSwap(false, true) {
					defer k.completing.Store(false)
					k.meter.Do(0, func() { k.complete(false) })
				}
			})
		}
	}
}

// complete adds the stacks and names of the events so far, while they can be read. If there is a
// recording or an incident, it also adds the losses, because there may be no view that adds them. Then
// it reports the complete incidents, or with all every incident.
func (k *keeper) complete(all bool) {
	k.wait()
	k.name()
	if k.recorder() != nil || k.hasIncidents() {
		// A Loss also completes incidents. Without news it would fill the recording of an
		// idle trace.
		if lost := k.losses(); k.hasIncidents() || !reflect.DeepEqual(lost, k.lost) {
			k.lost = lost
			k.apply(lost)
		}
	}
	for _, in := range locked(k.store, func(s *state.State) []*state.Incident { return s.Incidents(all) }) {
		k.opts.OutOfMemory(in) // there are none without it
	}
}

// sweep drops the stacks without a reference, once there are many. First the kernel side forgets them.
// Later, when no event can name them any more, the state drops them. The first step takes tens of milliseconds
// for tens of thousands of stacks, so it does not hold the lock.
func (k *keeper) sweep() {
	k.mu.Lock()
	if k.swept != 0 && k.state.Seen() >= k.swept+inFlight {
		k.swept = 0
		k.applyLocked(&record.Sweep{Drop: true})
	}
	if k.swept != 0 || !k.sheds.grew.Swap(false) && !k.state.WantsSweep() {
		k.mu.Unlock()
		return
	}
	k.applyLocked(&record.Sweep{})
	ids, pids := k.state.MarkedStacks()
	k.mu.Unlock()
	k.tracer.ForgetStacks(ids)
	for pid := range pids {
		k.frames.Invalidate(int(pid))
	}
	k.swept = monotonic()
}

// A reaper finds the processes whose exit event was lost, so that no trace waits for them forever. It
// ends a process that is gone in two checks in a row: an exit event that was not lost comes before the
// second check.
type reaper struct {
	round rounds.Rounds[event.Process]
	gone  map[event.Process]bool // the processes that were gone in their last check
}

// reap ends processes whose exit event was lost.
func (k *keeper) reap() {
	for _, id := range k.round.Next(reapAtOnce, k.living) {
		if !gone(id) {
			delete(k.gone, id)
			continue
		}
		if k.gone[id] {
			k.apply(&event.Event{Op: event.OpExit, Time: monotonic(), Proc: id})
			k.frames.Ended(int(id.PID))
		}
		k.gone[id] = true
	}
}

// living returns the processes for a new round, and forgets those that have ended.
func (k *keeper) living() (living []event.Process) {
	before := k.gone
	k.gone = map[event.Process]bool{}
	k.mu.Lock()
	defer k.mu.Unlock()
	for id, named := range k.state.Living {
		living = append(living, id)
		if before[id] {
			k.gone[id] = true
		}
		if !named {
			k.frames.Identify(id) // there was no room for it before
		}
	}
	return living
}

// gone reports whether a process has ended, even if another one has its PID.
func gone(id event.Process) bool {
	return proc.EndedSince(int(id.PID), id.Ticks())
}
