package session

import (
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
	"github.com/gpumemtrace/gpumemtrace/internal/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
	"github.com/gpumemtrace/gpumemtrace/symbolize"
)

const (
	// maxFrames bounds the frames of the stacks kept, of 32 bytes each.
	maxFrames = 4 << 20
	// sweepAt is how many are kept when stacks that nobody refers to are looked
	// for, and sweepAgain how many more when they are looked for again.
	sweepAt    = maxFrames / 4
	sweepAgain = maxFrames / 16
	// stackFrames are those that a stack without any counts for.
	stackFrames = 4
	// inFlight is more than the time between the kernel side's decision which
	// stack an event names and its place in the ring buffer.
	inFlight = time.Second
)

// A frame is an address of native code, or an interpreter's frame.
type frame struct {
	address symbolize.Address
	python  *snapshot.Location // nil for native code
}

// A stack is one call stack, leaf first.
type stack struct {
	process event.Process
	frames  []frame
	doomed  bool // goes at the end of the sweep, unless it is referred to then
}

// stacks are the call stacks by id. One stays for as long as something refers
// to it: a call site, or an event that is on its way. So the others go in two
// steps. First the kernel side is made to send them again when they come up
// again; then, once every event from before has been seen, those that are still
// without a reference are dropped.
type stacks struct {
	byID    map[uint64]*stack
	kept    int    // frames
	dropped uint64 // for want of room

	sweepAt  int // kept frames at which the next sweep begins
	sweeping bool
	since    uint64 // CLOCK_MONOTONIC from which on the doomed are sent again, 0 while that is not so
}

func newStacks() stacks { return stacks{byID: map[uint64]*stack{}, sweepAt: sweepAt} }

// add keeps a stack, and tells whether there was room.
func (s *stacks) add(id uint64, process event.Process, frames []frame) bool {
	if old, ok := s.byID[id]; ok { // evicted in the kernel and sent again
		old.doomed = false
		return true
	}
	n := len(frames) + stackFrames
	if s.kept+n > maxFrames {
		s.dropped++
		return false
	}
	s.byID[id] = &stack{process: process, frames: frames}
	s.kept += n
	return true
}

// frames returns those of a stack, nil if it is not known.
func (s *stacks) frames(id uint64) []frame {
	if st := s.byID[id]; st != nil {
		return st.frames
	}
	return nil
}

// wantsSweep tells whether it is time to look for what nobody refers to.
func (s *stacks) wantsSweep() bool { return !s.sweeping && s.kept >= s.sweepAt }

// doom begins a sweep: it returns the stacks without a reference, which the
// kernel side is to send again, and the processes they are of.
func (s *stacks) doom(referred map[uint64]bool) (ids []uint64, pids map[uint32]bool) {
	pids = map[uint32]bool{}
	for id, st := range s.byID {
		if !referred[id] {
			st.doomed = true
			ids = append(ids, id)
			pids[st.process.PID] = true
		}
	}
	s.sweeping = true
	return ids, pids
}

// told says that from the moment now on the kernel side sends the doomed stacks
// again.
func (s *stacks) told(now uint64) { s.since = now }

// wantsDrop tells whether every event that names a doomed stack has been seen:
// all events up to the moment seen have.
func (s *stacks) wantsDrop(seen uint64) bool {
	return s.since != 0 && seen >= s.since+uint64(inFlight)
}

// drop ends a sweep.
func (s *stacks) drop(referred map[uint64]bool) {
	for id, st := range s.byID {
		if st.doomed && !referred[id] {
			delete(s.byID, id)
			s.kept -= len(st.frames) + stackFrames
		}
		st.doomed = false
	}
	s.sweeping, s.since = false, 0
	s.sweepAt = max(sweepAt, min(s.kept+sweepAgain, maxFrames))
}

func (s *stacks) loss() loss.Counter {
	return loss.Counter{Name: "stacks_dropped", Value: s.dropped,
		Help: "stacks without frames because too many different ones are in use"}
}
