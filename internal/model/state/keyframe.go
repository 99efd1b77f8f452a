package state

import (
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// Keyframe yields records that rebuild what is live in a new State: a recording
// that drops its beginning begins with them. They do not tell of what ended, so
// that counts of what was ever allocated, and peaks, begin afresh. What was there before
// a process was attached to is not right before the next reading, which is wanted then.
// yield must not keep events.
func (s *State) Keyframe(yield func(record.Record)) {
	trace := s.trace
	yield(&trace)
	told := s.tensors.Told()
	if s.tensors.Partial() {
		yield(&record.Tensors{Sample: told.Sample, Min: told.Min})
	}
	for id, x := range s.procs.known {
		yield(&record.Process{Process: id, Target: true, Name: x.name, FromStart: !s.late(id), Program: x.program, User: x.user})
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
	// The driver layer first: its allocations are none that the memory below them was
	// taken for just before, and tensors lie in them.
	for _, layer := range []func(func(*event.Event) bool){s.ledger.Keyframe, s.physical.Keyframe, s.tensors.Keyframe} {
		layer(func(e *event.Event) bool {
			yield(e)
			return true
		})
	}
	for some := range slices.Chunk(told.Allocators, record.MaxAllocators) {
		yield(&record.Tensors{Sample: told.Sample, Min: told.Min, Time: told.Time, Allocators: some})
	}
	if s.tensors.Partial() { // at once
		yield(&record.Tensors{Sample: told.Sample, Min: told.Min})
	}
	for _, text := range s.notes {
		yield(&record.Note{Text: text})
	}
	lost, now := s.lost, s.now
	yield(&lost)
	s.steps.Keyframe(func(r *record.Steps) { yield(r) }) // after what waits for no stack any longer
	if s.read != nil {
		yield(s.read) // which the new State compares with what is live now
		s.wants.Reading = true
	}
	yield(&now)
	if s.pending != nil {
		yield(s.pending)
	}
	if s.stated != nil {
		yield(s.stated)
	}
}
