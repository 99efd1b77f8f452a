package state

import (
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// Over tells whether every target, and every child of theirs that is traced,
// has ended. Where every process is traced it is never.
func (s *State) Over() bool { return s.procs.over }

// Seen is the moment up to which every event has been told, in nanoseconds of
// CLOCK_MONOTONIC.
func (s *State) Seen() uint64 { return s.seen }

// Waits tells whether time alone changes what is shown: a reading, what allocators say,
// or the end of an incident, waits for it.
func (s *State) Waits() bool { return s.pending != nil || s.stated != nil || len(s.incidents.open) > 0 }

// Knows tells whether a process is traced, or was.
func (s *State) Knows(id event.Process) bool {
	_, known := s.procs.known[id]
	return known
}

// Living yields the traced processes that have not ended, and whether each has
// a name.
func (s *State) Living(yield func(id event.Process, named bool) bool) {
	for _, id := range s.procs.current {
		if !yield(id, s.procs.name(id) != "") {
			return
		}
	}
}

// SawTensors tells whether there ever was a tensor.
func (s *State) SawTensors() bool { return s.tensors.Seen() }

// Subjects are the processes that a reading should tell of.
func (s *State) Subjects() (out []record.Subject) {
	for _, id := range s.procs.current {
		subject := record.Subject{Process: id}
		add := func(device int32) {
			if device != event.NoDevice && !slices.Contains(subject.Ordinals, device) {
				subject.Ordinals = append(subject.Ordinals, device)
			}
		}
		for h := range s.ledger.Holdings(id) {
			add(h.Device)
		}
		for device := range s.tensors.On(id) {
			add(device)
		}
		out = append(out, subject)
	}
	return out
}

// Unnamed returns the places whose names were not looked for yet, and those
// for which looking again may be of use.
func (s *State) Unnamed() (first, again []*record.Place) { return s.stacks.Unnamed() }

// WantsSweep tells whether it is time for a record.Sweep.
func (s *State) WantsSweep() bool { return s.stacks.WantsSweep() }

// Doomed returns the stacks that the source must tell again when they come up
// again, and the living processes that they are of, by PID.
func (s *State) Doomed() (ids []uint64, pids map[uint32]bool) {
	ids, pids = s.stacks.Doomed()
	for pid := range pids {
		if _, lives := s.procs.current[pid]; !lives {
			delete(pids, pid)
		}
	}
	return ids, pids
}

// A Held is what one call site has in use.
type Held struct {
	Site           ledger.SiteKey
	Bytes, Objects int64
}

// Inuse yields what each call site of a living process has in use. It costs no
// more than a visit of each.
func (s *State) Inuse(yield func(Held) bool) {
	for x := range s.ledger.Sites {
		if x.InuseBytes > 0 && s.procs.lives(x.Proc) && !yield(Held{x.SiteKey, x.InuseBytes, x.InuseObjects}) {
			return
		}
	}
}

// Events returns how many events the state has seen.
func (s *State) Events() uint64 { return s.events }

// Time is that of the last record, by the wall clock.
func (s *State) Time() time.Time { return s.wall(s.now.Time) }

// Start is when the trace began.
func (s *State) Start() time.Time { return s.trace.Start }

// Now is the latest time that a record told, in nanoseconds of CLOCK_MONOTONIC.
// Events from before it may still be on their way: see Seen.
func (s *State) Now() uint64 { return s.now.Time }

// A Size counts what a state keeps.
type Size struct{ Stacks, Processes, Sites int }

// Size returns what the state keeps.
func (s *State) Size() Size {
	out := Size{Stacks: s.stacks.Len(), Processes: len(s.procs.known)}
	for range s.ledger.Sites {
		out.Sites++
	}
	return out
}
