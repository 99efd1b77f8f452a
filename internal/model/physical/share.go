package physical

import (
	"cmp"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// A Shortage is a process that wanted more objects than its share.
type Shortage struct {
	Proc event.Process
	Used int
	Lost uint64 // objects that it gave back or did not get
}

// Shortages yields the shortages of all processes.
func (l *Ledger) Shortages(yield func(Shortage) bool) {
	for p, s := range l.shares.Shortages {
		if !yield(Shortage{p.id, s.Len(), s.Lost()}) {
			return
		}
	}
}

// give removes n objects of p, as far as that is possible, the cheapest first: objects
// without memory and with no object below them; then memory that no other object shares,
// the smallest first, which leaves the total; then devices and clients.
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
	p.objects.AddLost(given)
	l.loss.Add(lossObjects, uint64(given))
}

// giveEmpty removes objects without memory and with no object below them, children before
// parents, until p has so many objects left. An object that was not seen made goes with its
// last child.
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

// giveMemory removes memory, until p has so many objects left.
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
