package state

import (
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// Keyframe yields records that rebuild what is live in a new State: a recording
// that drops its beginning begins with them. They have nothing that ended, so that counts
// and peaks start at zero. Memory from before a process was attached to is right again
// after the next reading, which the state asks for. Events are valid until yield returns.
func (s *State) Keyframe(yield func(record.Record)) {
	trace := s.trace
	yield(&trace)
	s.windows.Keyframe(s.now.Time, func(r *record.Tensors) { yield(r) })
	for id, x := range s.processes.known {
		r := &record.Process{Process: id, Target: true, Name: x.name, FromStart: !s.AttachedLate(id), Program: x.program, User: x.user}
		if x.who != nil {
			r.Who = *x.who
		}
		yield(r)
	}
	named := map[*record.Place]bool{}
	for stack := range s.stacks.All {
		yield(stack)
		for _, p := range stack.Frames {
			if p.Named() && !named[p] {
				named[p] = true
				yield(&record.Name{Place: p, Location: p.Location(), Final: p.Final()})
			}
		}
	}
	// The driver layer first: the memory of the physical layer was not allocated for its
	// allocations just before, and tensors lie in them.
	for _, layer := range []func(func(*event.Event) bool){s.ledger.Keyframe, s.physical.Keyframe, s.tensors.Keyframe} {
		layer(func(e *event.Event) bool {
			yield(e)
			return true
		})
	}
	s.heaps.keyframe(yield)
	for _, text := range s.notes {
		yield(&record.Note{Text: text})
	}
	lost, now := s.lost, s.now
	yield(&lost)
	if !s.windows.Active() { // else a window begins anew
		s.steps.Keyframe(func(r *record.Steps) { yield(r) }) // after the Loss, which ends the wait for stacks
	}
	if s.read != nil {
		yield(s.read) // which the new State compares with what is live now
		s.wants.Reading = true
	}
	yield(&now)
	if s.pending != nil {
		yield(s.pending)
	}
	if s.window != nil {
		yield(s.window)
	}
}
