package tensors

import (
	"cmp"
	"maps"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// maxFreed bounds the pairs of stacks, of all processes, of which it is known what one
// freed of the other's tensors.
const maxFreed = 1 << 16

var lossFreed = causes.Add("tensor_freed_by_full", "frees of which it is no longer known at which stack, because there were too many pairs of stacks")

// A Freer is a stack at which tensors were freed that another stack had made, on a
// device.
type Freer struct {
	Stack  uint64 // that made them
	By     uint64 // that freed them
	Device int32
}

// A Freed is what a Freer freed.
type Freed struct{ Objects, Bytes int64 }

// frees counts a free that has a stack, where every tensor is told.
func (l *Ledger) frees(p *process, t *tensor, e *event.Event) {
	if e.Stack == 0 || l.Partial() {
		return
	}
	if p.freed == nil {
		p.freed = map[Freer]Freed{}
	}
	key := Freer{Stack: t.stack, By: e.Stack, Device: t.device}
	f, ok := p.freed[key]
	if !ok {
		if l.pairs >= maxFreed {
			l.thin()
		}
		l.pairs++
	}
	p.freed[key] = Freed{f.Objects + 1, f.Bytes + int64(t.size)}
}

// thin drops, of the process that has most pairs, the half that freed least.
func (l *Ledger) thin() {
	var p *process
	var most event.Process
	for id, q := range l.procs {
		if p == nil || cmp.Or(cmp.Compare(len(q.freed), len(p.freed)), cmp.Compare(most.PID, id.PID), cmp.Compare(most.Start, id.Start)) > 0 {
			p, most = q, id
		}
	}
	order := slices.SortedFunc(maps.Keys(p.freed), func(a, b Freer) int {
		return cmp.Or(cmp.Compare(p.freed[a].Bytes, p.freed[b].Bytes), cmp.Compare(a.Stack, b.Stack), cmp.Compare(a.By, b.By), cmp.Compare(a.Device, b.Device))
	})
	for _, key := range order[:(len(order)+1)/2] {
		l.loss.Add(lossFreed, uint64(p.freed[key].Objects))
		delete(p.freed, key)
		l.pairs--
	}
}

// Freed yields what was freed of each process's tensors at stacks that are known, as
// far as frees have any.
func (l *Ledger) Freed(yield func(event.Process, Freer, Freed) bool) {
	for id, p := range l.procs {
		for by, what := range p.freed {
			if !yield(id, by, what) {
				return
			}
		}
	}
}
