package session

import (
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
)

// However many stacks come by, those that something refers to keep their
// frames, and the others make room.
func TestStacksMakeRoom(t *testing.T) {
	s := newStacks()
	frames := make([]frame, 28)
	const maxStacks = maxFrames / (28 + stackFrames)
	live := map[uint64]bool{}
	now := uint64(1)
	for id := uint64(1); id <= 10*maxStacks; id++ {
		if !s.add(id, event.Process{PID: 1}, frames) {
			t.Fatalf("no room for stack %d, %d kept", id, len(s.byID))
		}
		if id%1000 == 0 {
			live[id] = true
		}
		if s.wantsSweep() {
			now += uint64(inFlight)
			if ids, pids := s.doom(live); len(ids) == 0 || !pids[1] {
				t.Fatalf("%d doomed of %v", len(ids), pids)
			}
			if s.wantsSweep() || s.wantsDrop(now+10*uint64(inFlight)) {
				t.Fatal("dropped before the kernel side was told")
			}
			s.told(now)
			if s.wantsDrop(now + 1) {
				t.Fatal("dropped while an event may be on its way")
			}
			if !s.wantsDrop(now + uint64(inFlight)) {
				t.Fatal("never dropped")
			}
			s.drop(live)
		}
	}
	for id := range live {
		if s.frames(id) == nil {
			t.Fatalf("stack %d is referred to and has no frames", id)
		}
	}
	kept := 0
	for _, st := range s.byID {
		kept += len(st.frames) + stackFrames
	}
	if s.dropped != 0 || s.kept != kept || kept > maxFrames {
		t.Errorf("%d dropped, %d frames kept, counted %d", s.dropped, kept, s.kept)
	}
}

// A stack that comes up again between the two steps of a sweep stays.
func TestStackComesUpAgain(t *testing.T) {
	s := newStacks()
	for id := uint64(1); id <= 4; id++ {
		s.add(id, event.Process{PID: 1}, make([]frame, 1))
	}
	s.doom(map[uint64]bool{1: true})
	s.told(1)
	s.add(2, event.Process{PID: 1}, nil) // sent again
	s.drop(map[uint64]bool{1: true, 3: true})
	for id, want := range map[uint64]bool{1: true, 2: true, 3: true, 4: false} {
		if got := s.frames(id) != nil; got != want {
			t.Errorf("stack %d kept %v, want %v", id, got, want)
		}
	}
}

// With all in use the next one is counted, and the kernel side is to send it
// again.
func TestStacksFull(t *testing.T) {
	s := newStacks()
	const most = maxFrames / (60 + stackFrames)
	for id := uint64(1); id <= most; id++ {
		s.add(id, event.Process{}, make([]frame, 60))
	}
	if s.add(most+1, event.Process{}, make([]frame, 60)) || s.loss().Value != 1 {
		t.Errorf("a stack too many is kept, or not counted: %+v", s.loss())
	}
}
