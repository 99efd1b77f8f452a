package state

import (
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// A user's name comes after the number and stays; a child has what its parent has, until it
// runs another program.
func TestWho(t *testing.T) {
	p := newProcesses()
	parent, child := holder(7, 1), holder(8, 2)
	p.learn(&record.Process{Process: parent, Target: true}, 0)
	if p.who(parent) != nil {
		t.Errorf("%+v of a process of which nothing is known", p.who(parent))
	}
	p.learn(&record.Process{Process: parent, User: record.UserOf(1000)}, 0)
	if got := *p.who(parent); got != (snapshot.Who{User: "1000"}) {
		t.Errorf("%+v, want the user's number", got)
	}
	known := snapshot.Who{User: "ada", Command: "python3 train.py", ContainerID: "0123"}
	p.learn(&record.Process{Process: parent, Who: known}, 0)
	before := p.who(parent)
	p.learn(&record.Process{Process: parent, User: record.UserOf(1000), Who: snapshot.Who{Pod: "train-0"}}, 0)
	if *before != known {
		t.Errorf("what a view has changed to %+v", *before)
	}
	known.Pod = "train-0"
	if got := *p.who(parent); got != known {
		t.Errorf("%+v, want %+v", got, known)
	}
	p.apply(&event.Event{Op: event.OpFork, Proc: parent, Child: child, Name: "python3"})
	if got := *p.who(child); got != known {
		t.Errorf("%+v of the child, want %+v", got, known)
	}
	p.apply(&event.Event{Op: event.OpExec, Proc: child, Name: "worker"})
	known.Command = ""
	if got := *p.who(child); got != known || p.who(parent).Command == "" {
		t.Errorf("%+v of another program, want %+v", got, known)
	}
}

// Samples and processes have it, from a keyframe too.
func TestWhoInASnapshot(t *testing.T) {
	s := New()
	id := holder(7, 1)
	s.Apply(&record.Trace{APIs: []string{"", "cuMemAlloc_v2"}})
	s.Apply(&record.Process{Process: id, Target: true, Name: "python3", FromStart: true, User: record.UserOf(1000), Who: snapshot.Who{User: "ada", Command: "python3 train.py"}})
	s.Apply(&event.Event{Op: event.OpAlloc, Kind: event.KindDevice, API: 1, Time: 1, Proc: id, TID: 7, Addr: 1 << 20, Size: 1 << 20, Device: event.NoDevice})
	again := New()
	s.Keyframe(func(r record.Record) { again.Apply(r) })
	for name, s := range map[string]*State{"the state": s, "its keyframe": again} {
		snap := s.View(Want{}).Snapshot()
		if len(snap.Samples) != 1 || len(snap.Processes) != 1 {
			t.Fatalf("%s: %+v", name, snap)
		}
		if who := snap.Samples[0].Who; who == nil || who.User != "ada" || who.Command != "python3 train.py" || *who != snap.Processes[0].Who {
			t.Errorf("%s: %+v, %+v", name, who, snap.Processes[0].Who)
		}
	}
}

// A process has a parent, and tells when that ended before it, if it holds memory and runs the same program. What a recording
// begins with says so too.
func TestParents(t *testing.T) {
	s, start := New(), time.Unix(1_700_000_000, 0)
	s.Apply(&record.Trace{Start: start, Boot: start})
	parent, child, idle, other := event.Process{PID: 10, Start: 1}, event.Process{PID: 11, Start: 2}, event.Process{PID: 12, Start: 3}, event.Process{PID: 13, Start: 4}
	s.Apply(&record.Process{Process: parent, Target: true, Name: "server", Program: &snapshot.Mapping{Path: "/usr/bin/python3"}})
	for _, id := range []event.Process{child, idle, other} {
		s.Apply(&event.Event{Op: event.OpFork, Time: 10, Proc: parent, Child: id, Name: "engine"})
	}
	s.Apply(&record.Process{Process: child, Parent: 1}) // read too late
	s.Apply(&event.Event{Op: event.OpExec, Time: 11, Proc: other, Name: "trainer"})
	s.Apply(&record.Process{Process: other, Program: &snapshot.Mapping{Path: "/usr/bin/trainer"}})
	for _, id := range []event.Process{child, other} {
		s.Apply(&event.Event{Op: event.OpAlloc, Kind: event.KindDevice, Time: 20, Proc: id, Addr: 1 << 20, Size: 4096})
	}
	middle := New()
	s.Keyframe(func(r record.Record) { middle.Apply(r) })
	for _, s := range []*State{s, middle} {
		s.Apply(&event.Event{Op: event.OpExit, Time: 30, Proc: parent})
		end := New()
		s.Keyframe(func(r record.Record) { end.Apply(r) })
		for _, s := range []*State{s, end} {
			for _, p := range s.View(Want{}).Snapshot().Processes {
				if ended := start.Add(30); p.PID == 11 && (p.Parent != 10 || !p.ParentEnded.Equal(ended)) || p.PID > 11 && (p.Parent != 10 || !p.ParentEnded.IsZero()) {
					t.Errorf("%+v", p)
				}
			}
		}
	}
}

// Of a process that starts one child after the other not all are remembered.
func TestManyChildren(t *testing.T) {
	p := newProcesses()
	parent := event.Process{PID: 1, Start: 1}
	p.learn(&record.Process{Process: parent, Target: true}, 0)
	for i := range uint32(10_000) {
		child := event.Process{PID: 2 + i, Start: 2}
		p.apply(&event.Event{Op: event.OpFork, Time: 1, Proc: parent, Child: child})
		p.end(child, 2, false)
	}
	if n := cap(p.children(parent)); n > 8 {
		t.Errorf("room for %d children, and none lives", n)
	}
}
