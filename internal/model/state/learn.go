package state

import (
	"cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// LearnFrom copies from end, the state at the end of the same recording, what only later records
// say: the target, the names of processes and who they belong to, the GPUs of memory, what tensors
// are for, and the paths of modules. No record may be applied to s after that.
func (s *State) LearnFrom(end *State) {
	s.trace.Target = end.trace.Target
	s.processes.learnFrom(end.processes)
	s.gpus.later = end.gpus
	s.categories = end.View(Want{}).tensorCategories()
	s.laterModules = end.heaps.modules()
}

// learnFrom adds what a later moment knows of processes, and p does not.
func (p *processes) learnFrom(later *processes) {
	for id, x := range p.known {
		known := later.known[id]
		if known == nil {
			continue
		}
		x.name, x.program = cmp.Or(x.name, known.name), cmp.Or(x.program, known.program)
		var who snapshot.Who
		for _, of := range []*snapshot.Who{known.who, x.who} {
			if of != nil {
				who = who.Learn(*of)
			}
		}
		x.learn(who)
		x.parent = cmp.Or(x.parent, known.parent)
	}
}
