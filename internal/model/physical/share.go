package physical

import (
	"cmp"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// A Shortage says of a process that it wanted more objects than its share.
type Shortage struct {
	Proc event.Process
	Held int
	Lost uint64 // objects that it gave back, or that were not kept
}

// Shortages yields the shortages of all processes.
func (l *Ledger) Shortages(yield func(Shortage) bool) {
	for p, s := range l.shares.Short {
		if !yield(Shortage{p.id, s.Len(), s.Lost()}) {
			return
		}
	}
}

// give makes the ledger know n objects of p no more, as far as that is possible. What
// costs least goes first: objects that hold no memory and that none is below; then
// memory that nobody shares, the least of it first, which is not in the total any more;
// then devices and clients.
func (l *Ledger) give(p *process, n int) {
	left := p.objects.Len() - n
	l.giveEmpty(p, left, func(o *object) bool { return o.op == event.OpObject })
	if p.objects.Len() > left {
		l.giveMemory(p, left)
	}
	if p.objects.Len() > left {
		l.giveEmpty(p, left, func(*object) bool { return true })
	}
	given := left + n - p.objects.Len()
	p.objects.Lose(given)
	l.loss.Add(lossObjects, uint64(given))
}

// giveEmpty makes unknown what holds no memory and has nothing below it, children before
// what they are below, until p has so many objects left. An object that was not seen made
// goes with what was below it.
func (l *Ledger) giveEmpty(p *process, left int, gives func(*object) bool) {
	for o := p.root.deepest(); o != &p.root && p.objects.Len() > left; {
		next := o.parent
		if o.next != nil {
			next = o.next.deepest()
		}
		if o.first == nil && o.memory == nil && (gives(o) || o.op == event.OpNone || o.op == opDescriptor) {
			o.ended = true
			l.forget(o)
			o.remove()
		}
		if o = next; p.objects.Len() <= left {
			l.prune(o)
			return
		}
	}
}

// deepest returns the first object of a walk over o and all below it, children first.
func (o *object) deepest() *object {
	for o.first != nil {
		o = o.first
	}
	return o
}

// giveMemory makes memory unknown.
func (l *Ledger) giveMemory(p *process, left int) {
	var all []*object
	for o := p.root.first; o != nil; o = o.after(&p.root) {
		if m := o.memory; m != nil && m.next == m && o.first == nil {
			all = append(all, o)
		}
	}
	slices.SortFunc(all, func(a, b *object) int {
		return cmp.Or(cmp.Compare(a.memory.size, b.memory.size), cmp.Compare(a.order, b.order))
	})
	for _, o := range all[:min(max(p.objects.Len()-left, 0), len(all))] {
		parent := o.parent
		o.ended = true
		l.forget(o)
		o.remove()
		l.release(o.memory, p.changed, false)
		l.prune(parent)
	}
}
