package stacks

import (
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

func add(t *Table, id uint64, frames int) bool {
	t.Add(&record.Stack{ID: id, Process: event.Process{PID: 1}, Frames: make([]*record.Place, frames)})
	return t.Frames(id) != nil
}

func among(ids map[uint64]bool) func(uint64) bool { return func(id uint64) bool { return ids[id] } }

// However many stacks come by, those that something refers to keep their
// frames, and the others make room.
func TestStacksMakeRoom(t *testing.T) {
	s := NewTable()
	const maxStacks = MaxFrames / (28 + stackFrames)
	live := map[uint64]bool{}
	for id := uint64(1); id <= 10*maxStacks; id++ {
		if !add(s, id, 28) {
			t.Fatalf("no room for stack %d, %d kept", id, len(s.byID))
		}
		if id%1000 == 0 {
			live[id] = true
		}
		if s.WantsSweep() {
			s.Mark(among(live))
			if ids, pids := s.Marked(); len(ids) == 0 || !pids[1] {
				t.Fatalf("%d doomed of %v", len(ids), pids)
			}
			if s.WantsSweep() {
				t.Fatal("a sweep begins within a sweep")
			}
			s.Drop(among(live))
		}
	}
	for id := range live {
		if s.Frames(id) == nil {
			t.Fatalf("stack %d is referred to and has no frames", id)
		}
	}
	kept := 0
	for _, st := range s.byID {
		kept += len(st.Frames) + stackFrames
	}
	if s.Loss()[lossDropped].Value != 0 || s.frames != kept || kept > MaxFrames {
		t.Errorf("%v, %d frames kept, counted %d", s.Loss(), s.frames, kept)
	}
}

// A stack that comes up again between the two steps of a sweep stays.
func TestStackComesUpAgain(t *testing.T) {
	s := NewTable()
	for id := uint64(1); id <= 4; id++ {
		add(s, id, 1)
	}
	s.Mark(among(map[uint64]bool{1: true}))
	add(s, 2, 0) // told again
	s.Drop(among(map[uint64]bool{1: true, 3: true}))
	for id, want := range map[uint64]bool{1: true, 2: true, 3: true, 4: false} {
		if got := s.Frames(id) != nil; got != want {
			t.Errorf("stack %d kept %v, want %v", id, got, want)
		}
	}
}

// With all in use the next one is counted, and the kernel side is to send it
// again.
func TestStacksFull(t *testing.T) {
	s := NewTable()
	const most = MaxFrames / (60 + stackFrames)
	for id := uint64(1); id <= most; id++ {
		add(s, id, 60)
	}
	if add(s, most+1, 60) || s.Loss()[lossDropped].Value != 1 {
		t.Errorf("a stack too many is kept, or not counted: %+v", s.Loss())
	}
	s.Mark(func(uint64) bool { return true })
	if ids, pids := s.Marked(); len(ids) != 1 || ids[0] != most+1 || !pids[1] {
		t.Errorf("%v of %v are asked for again", ids, pids)
	}
	if ids, _ := s.Marked(); len(ids) != 0 {
		t.Errorf("%v are asked for twice", ids)
	}
}

// A stack whose places all have their last name is not looked at again.
func TestUnnamed(t *testing.T) {
	s := NewTable()
	one, two := record.NewPlace(1, 0x10, nil, nil), record.NewPlace(2, 0x20, nil, nil)
	python := record.NewPlace(3, 0, &snapshot.Location{Lines: []snapshot.Line{{Function: "f", File: "f.py"}}}, nil)
	s.Add(&record.Stack{ID: 1, Frames: []*record.Place{one, two, python}})
	s.Add(&record.Stack{ID: 2, Frames: []*record.Place{two, one, two}})
	want := func(first, again int) {
		t.Helper()
		a, b := s.Unnamed()
		if len(a) != first || len(b) != again {
			t.Errorf("%d without a name and %d with a first one, want %d and %d", len(a), len(b), first, again)
		}
	}
	want(2, 0)
	name := func(p *record.Place, final bool) {
		(&record.Name{Place: p, Location: &snapshot.Location{Lines: []snapshot.Line{{Function: "g"}}}, Final: final}).Apply()
	}
	name(one, false)
	want(1, 1)
	name(two, true)
	want(0, 1)
	name(one, true)
	want(0, 0)
	if len(s.unnamed) != 0 {
		t.Errorf("%d stacks are looked through that have all names", len(s.unnamed))
	}
	s.Add(&record.Stack{ID: 3, Frames: []*record.Place{record.NewPlace(4, 0x40, nil, nil)}})
	want(1, 0)
	none := func(uint64) bool { return false }
	s.Mark(none)
	s.Drop(none)
	want(0, 0)
}

// A full table of stacks that were in use makes room when they no longer are,
// also where it is not full to the last frame.
func TestFullTableMakesRoom(t *testing.T) {
	s := NewTable()
	const frames, most = 60, MaxFrames / (60 + stackFrames)
	for id := uint64(1); id <= most-1; id++ {
		add(s, id, frames)
		if s.WantsSweep() { // all in use
			s.Mark(func(uint64) bool { return true })
			s.Drop(func(uint64) bool { return true })
		}
	}
	add(s, most, MaxFrames)
	if !s.WantsSweep() {
		t.Fatalf("a stack was refused with %d of %d frames kept, and no room is made", s.frames, MaxFrames)
	}
	none := func(uint64) bool { return false }
	s.Mark(none)
	s.Marked()
	s.Drop(none)
	if !add(s, most, frames) || s.WantsSweep() {
		t.Errorf("no room with %d frames kept", s.frames)
	}
}
