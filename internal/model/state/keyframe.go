package state

import (
	"cmp"
	"maps"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// Keyframe yields records that rebuild the state in a new State: a recording that drops its
// beginning begins with them. That shows the same figures, counts and peaks, but none of the
// windows of tensors from before, and no failure that is not over.
func (s *State) Keyframe(yield func(record.Record)) {
	trace := s.trace
	yield(&trace)
	s.windows.Keyframe(s.now.Time, func(r *record.Tensors) { yield(r) })
	byStart := func(a, b event.Process) int { return cmp.Compare(a.Start, b.Start) }
	for _, id := range slices.SortedFunc(maps.Keys(s.processes.known), byStart) { // parents before their children
		x := s.processes.known[id]
		r := &record.Process{Process: id, Target: true, Name: x.name, FromStart: x.fromStart, Program: x.program, User: x.user,
			Parent: x.parent.PID, ParentEnd: x.parentEnd}
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
	if s.read != nil {
		yield(s.read)
	}
	for of := range record.OfSteps {
		record.WriteFields(of, s.fieldsOf(of), yield)
	}
	s.heaps.keyframe(yield)
	for _, text := range s.notes {
		yield(&record.Note{Text: text})
	}
	lost, now := s.lost, s.now
	yield(&lost)
	if !s.windows.Active() { // else a window begins anew
		record.WriteFields(record.OfSteps, s.steps.Visit, yield) // after the Loss, which ends the wait for stacks
	}
	yield(&now)
	if s.pending != nil {
		yield(s.pending)
	}
	if s.window != nil {
		yield(s.window)
	}
}

// fieldsOf returns what visits the fields of a part of the state.
func (s *State) fieldsOf(of record.PartOf) func(*record.Fields) {
	return [...]func(*record.Fields){
		record.OfState: s.visit, record.OfDriver: s.ledger.Visit, record.OfPhysical: s.physical.Visit,
		record.OfTensors: s.tensors.Visit, record.OfSteps: s.steps.Visit,
	}[of]
}

// A rebuilding says how much of a keyframe a state has.
type rebuilding struct {
	over bool          // the keyframe, or there is none
	of   record.PartOf // what comes next
	data []byte        // what came of that
}

// rebuild applies a part of a keyframe. If it is damaged, the state is empty again.
func (s *State) rebuild(r *record.Part) {
	k := &s.rebuilding
	if k.over {
		return
	}
	k.data = append(k.data, r.Data...)
	sound := r.Of == k.of && len(k.data) <= record.MaxParts
	if sound && r.More {
		return
	}
	if sound && record.ReadFields(k.data, s.fieldsOf(r.Of)) {
		k.of, k.data = k.of+1, nil
		s.applyPieces(nil)
		return
	}
	trace := s.trace
	s.cut(&record.Cut{Time: max(s.began, s.now.Time, 1)})
	s.Apply(&trace)
	s.rebuilding.over = true
	s.notes = append(s.notes, "what the recording says of the time before it begins is damaged: memory that was live then is missing")
}

// visit visits what the state has beside its layers, stacks and names.
func (s *State) visit(f *record.Fields) {
	f.Uint(&s.events, &s.reported)
	s.processes.visit(f)
	read := s.read != nil
	if f.Bool(&read); f.Reading() && read {
		s.read, s.pending = s.pending, nil
	}
	if s.read != nil {
		s.accounts.Visit(f, s.read.Devices)
	}
	record.Map(f, s.peaks.byProcess, 6, maxKnown, func(id *event.Process, at **peak) {
		p := record.Make(f, at)
		f.Process(id)
		record.Signed(f, &p.Total, &p.Allocated, &p.Tensors)
		f.Bool(&p.lasts)
	})
}

// visit visits what records of processes do not say: of the ended ones, in order, and then of the
// living ones.
func (p *processes) visit(f *record.Fields) {
	f.Uint(&p.refused)
	f.Bool(&p.over)
	all := slices.Clone(p.ended)
	for id, x := range p.known {
		if x.end == 0 {
			all = append(all, id)
		}
	}
	if f.Reading() {
		clear(p.current)
	}
	record.List(f, &all, 4, maxKnown, func(id *event.Process) {
		f.Process(id)
		x := p.known[*id]
		if x == nil {
			x = &process{} // its record was not kept
		}
		f.Require(x.end == 0)
		f.Uint(&x.since, &x.end)
		switch {
		case !f.Reading() || p.known[*id] == nil:
		case x.end != 0:
			p.addEnded(*id, x)
		case p.current[id.PID].Start < id.Start:
			p.current[id.PID] = *id
		}
	})
}
