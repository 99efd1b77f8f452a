package state

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// inuse returns the bytes of a process in use whose stack is known, and those under none.
func inuse(s *State, pid uint32) (known, unknown int64) {
	snap := s.View(Want{}).Snapshot()
	for i := range snap.Samples {
		x := &snap.Samples[i]
		if x.PID != int(pid) {
			continue
		}
		if slices.ContainsFunc(x.Stack, func(l *snapshot.Location) bool { return l.Lines[0].Function == "[mine]" }) {
			known += x.InuseBytes
		} else {
			unknown += x.InuseBytes
		}
	}
	return known, unknown
}

// Processes of one user that fill every table take nothing from another user's, and are
// named. The users are known from the record of a process, from its parent, and from a
// keyframe.
func TestStrangersTakeNothing(t *testing.T) {
	mine := event.Process{PID: 20, Start: event.StartUnit}
	first := event.Process{PID: 1000, Start: event.StartUnit}
	const strangers = 100
	s := begun(record.Trace{MaxLive: 2000, All: true})
	s.Apply(&record.Process{Process: mine, Target: true, Name: "mine", User: record.UserOf(1000)})
	s.Apply(&record.Process{Process: first, Target: true, Name: "python", User: record.UserOf(666)})
	now := uint64(1)
	stranger := func(i uint32) event.Process { return event.Process{PID: first.PID + i, Start: event.StartUnit} }
	for i := uint32(1); i < strangers; i++ {
		now++
		s.Apply(&event.Event{Op: event.OpFork, Proc: first, Child: stranger(i), Time: now, Name: "python"})
	}
	stack(s, 1, " ", "mine")
	round := func(n uint64) {
		for i := range uint32(strangers) {
			for range n {
				now++
				e := alloc(stranger(i), now, now<<12, 1)
				e.Stack = 1<<32 + now
				s.Apply(e)
			}
		}
	}
	mib := func(n int) {
		for range n {
			now++
			e := alloc(mine, now, now<<12, 1)
			e.Stack = 1
			s.Apply(e)
		}
	}
	round(20)
	mib(800)
	round(20)
	check := func(s *State, when string) {
		t.Helper()
		if known, unknown := inuse(s, mine.PID); known != 800 || unknown != 0 {
			t.Errorf("%s: %d bytes with their stack, %d without", when, known, unknown)
		}
		var sum int64
		for i := range uint32(strangers) {
			known, unknown := inuse(s, stranger(i).PID)
			sum += known + unknown
		}
		if sum != 40*strangers {
			t.Errorf("%s: the strangers hold %d bytes, want %d", when, sum, 40*strangers)
		}
	}
	check(s, "live")
	notes := s.View(Want{}).Snapshot().Notes
	if !slices.ContainsFunc(notes, func(n string) bool {
		return strings.Contains(n, " (python) of user 666 ") && strings.Contains(n, "of 2000 rows of live allocations")
	}) || slices.ContainsFunc(notes, func(n string) bool { return strings.Contains(n, "process 20 ") }) {
		t.Errorf("notes: %q", notes)
	}
	if len(notes) > maxShortages+1 {
		t.Errorf("%d notes", len(notes))
	}

	again := New()
	s.Keyframe(func(r record.Record) { again.Apply(r) })
	if uid, known := again.processes.user(stranger(5)); uid != 666 || !known {
		t.Errorf("a keyframe says of the user of a child %d, %v", uid, known)
	}
	round(20)
	for _, x := range []*State{s, again} {
		if known, unknown := inuse(x, mine.PID); known != 800 || unknown != 0 {
			t.Errorf("after more: %d bytes with their stack, %d without", known, unknown)
		}
	}

	// When the strangers have ended there is room for all that I have.
	for i := range uint32(strangers) {
		now++
		s.Apply(exit(stranger(i), now))
	}
	mib(1000)
	if known, unknown := inuse(s, mine.PID); known != 1800 || unknown != 0 {
		t.Errorf("after the strangers' end: %d bytes with their stack, %d without", known, unknown)
	}
}

// A user whose processes end by the thousand does not make those of others forgotten,
// which nobody may have been told of yet.
func TestEndedProcessesAreShared(t *testing.T) {
	s := begun(record.Trace{All: true})
	now := uint64(1)
	ends := func(id event.Process, uid uint32) {
		now += 3
		s.Apply(&record.Process{Process: id, Target: true, User: record.UserOf(uid)})
		s.Apply(alloc(id, now, 1<<20, 100))
		s.Apply(exit(id, now+1))
	}
	mine := event.Process{PID: 20, Start: event.StartUnit}
	ends(mine, 1000)
	for i := range uint32(3 * maxEnded) {
		ends(event.Process{PID: 1000 + i, Start: event.StartUnit}, 666)
	}
	if len(s.processes.ended) != maxEnded || !s.Knows(mine) || !s.ledger.Active(mine) {
		t.Errorf("%d ended processes are kept, mine is known %v, its counters %v", len(s.processes.ended), s.Knows(mine), s.ledger.Active(mine))
	}
	s.Apply(&record.Reported{})
	if len(s.processes.ended) != 0 || len(s.processes.endedOf) != 0 {
		t.Errorf("after a report %d ended processes of %d users are kept", len(s.processes.ended), len(s.processes.endedOf))
	}
}
