package state

import (
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
)

// The stacks of ended processes make room for those of processes that live, the first ended first.
func TestEndedStacksMakeRoom(t *testing.T) {
	s := begun(record.Trace{All: true})
	now := uint64(100)
	process := func(i int) event.Process { return event.Process{PID: uint32(1000 + i), Start: event.StartUnit} }
	apply := func(i int, e event.Event) {
		now++
		e.Proc, e.TID, e.Time = process(i), process(i).PID, now
		s.Apply(&e)
	}
	stack := func(i int, id uint64) {
		s.Apply(&record.Stack{ID: id, Process: process(i), Frames: make([]*record.Place, 1000)})
	}
	const ended, each = 10, stacks.MaxFrames/1004/10 + 1
	for i := range ended {
		apply(i, event.Event{Op: event.OpAlloc, Kind: event.KindDevice, Addr: 1 << 12, Size: 1, API: 1})
		for n := range each {
			stack(i, uint64(1+i*each+n))
		}
		apply(i, event.Event{Op: event.OpExit})
	}
	apply(ended, event.Event{Op: event.OpAlloc, Kind: event.KindDevice, Addr: 1 << 12, Size: 1, API: 1})
	for n := range 2 * each {
		if stack(ended, uint64(1<<32+n)); s.stacks.Frames(uint64(1<<32+n)) == nil {
			t.Fatalf("stack %d of the process that lives is not kept", n)
		}
	}
	if s.stacks.Frames(ended*each) == nil || s.stacks.Frames(1) != nil {
		t.Error("not the stacks of the process that ended first went")
	}
}

// Each table counts for the tenant of the process that has its entries.
func TestFilledBy(t *testing.T) {
	s := begun(record.Trace{All: true})
	mine := event.Process{PID: 77, Start: event.StartUnit}
	for i, e := range []event.Event{
		{Op: event.OpAlloc, Kind: event.KindDevice, Addr: 1 << 12, Size: 1, API: 1},
		{Op: event.OpMap, Handle: 1, Addr: 1 << 21, Size: 1 << 21},
		{Op: event.OpObject, Handle: 1<<32 | 2, Part: 1<<32 | 1},
	} {
		e.Proc, e.TID, e.Time, e.Tenant = mine, mine.PID, uint64(200+i), 5
		s.Apply(&e)
	}
	f := s.FilledBy()[5]
	if f == nil || f.Detail(Driver)[rows] != 1 || *f.Sites(Driver) != 1 || f.of(Driver)[mappings] != 1 || f.of(Physical)[objects] == 0 {
		t.Errorf("%v", f)
	}
	if all := s.Filled(); all != *f {
		t.Errorf("%v in all, want %v", all, f)
	}
}
