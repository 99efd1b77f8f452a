package ledger

import (
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
)

// retired is a queue of ended processes.
type retired []*process

func (r *retired) add(p *process) { *r = append(*r, p) }

func (r *retired) remove(p *process) {
	if i := slices.Index(*r, p); i >= 0 {
		*r = slices.Delete(*r, i, i+1)
	}
}

// forgotten remembers which processes were forgotten last, so that their
// stragglers do not bring them back to life.
type forgotten struct {
	max   int
	set   map[event.Process]struct{}
	queue []event.Process
}

func (f *forgotten) has(id event.Process) bool {
	_, ok := f.set[id]
	return ok
}

func (f *forgotten) add(id event.Process) {
	if len(f.queue) >= f.max {
		delete(f.set, f.queue[0])
		f.queue = slices.Delete(f.queue, 0, 1)
	}
	f.set[id] = struct{}{}
	f.queue = append(f.queue, id)
}
