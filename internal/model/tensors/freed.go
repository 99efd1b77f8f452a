package tensors

import (
	"cmp"
	"maps"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/keyed"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// maxFreed bounds the pairs of stacks, of all processes, of which one freed tensors of
// the other.
const maxFreed = 1 << 16

var lossFreed = causes.Add("tensor_freed_by_full", "frees whose stack is no longer known, because there were too many pairs of stacks")

// A Freer is a stack at which tensors were freed that another stack had made, on a
// device.
type Freer struct {
	Stack  uint64 // that made them
	By     uint64 // that freed them
	Device int32
}

// A Freed is what a Freer freed.
type Freed struct{ Objects, Bytes int64 }

// A freerTable has the freers of all processes.
type freerTable struct {
	processes map[event.Process]map[Freer]Freed
	n         int
	loss      *loss.Set
}

// add counts the free of x by e, which has a stack.
func (t *freerTable) add(x *tensor, e *event.Event) {
	p := keyed.Map(t.processes, e.Proc)
	key := Freer{Stack: x.stack, By: e.Stack, Device: x.device}
	f, ok := p[key]
	if !ok {
		if t.n >= maxFreed {
			t.thin()
		}
		t.n++
	}
	p[key] = Freed{f.Objects + 1, f.Bytes + int64(x.size)}
}

// thin drops, of the process that has most pairs, the half that freed least.
func (t *freerTable) thin() {
	most := slices.MaxFunc(slices.Collect(maps.Keys(t.processes)), func(a, b event.Process) int {
		return cmp.Or(cmp.Compare(len(t.processes[a]), len(t.processes[b])), b.Compare(a))
	})
	p := t.processes[most]
	order := sorting.Keys(p, func(a, b Freer) int {
		return cmp.Or(cmp.Compare(p[a].Bytes, p[b].Bytes), cmp.Compare(a.Stack, b.Stack), cmp.Compare(a.By, b.By), cmp.Compare(a.Device, b.Device))
	})
	for _, key := range order[:(len(order)+1)/2] {
		t.loss.Add(lossFreed, uint64(p[key].Objects))
		delete(p, key)
		t.n--
	}
}

func (t *freerTable) forget(id event.Process) {
	t.n -= len(t.processes[id])
	delete(t.processes, id)
}

// Freed yields what was freed of each process's tensors at stacks that are known, as
// far as frees have any.
func (l *Ledger) Freed(yield func(event.Process, Freer, Freed) bool) {
	for id, p := range l.freers.processes {
		for by, what := range p {
			if !yield(id, by, what) {
				return
			}
		}
	}
}
