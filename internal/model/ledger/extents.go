package ledger

import (
	"cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// An Extent is an address range [From, To) of memory of class device.
type Extent struct {
	Proc     event.Process
	From, To uint64
	Site     *Site // nil where it ended
	time     uint64
}

// Extents returns the ranges that proc has and that have a row, oldest first.
func (l *Ledger) Extents(proc event.Process) (all []Extent) {
	p := l.lookup(proc)
	add := func(from, to, time uint64, site uint32) {
		if s := p.sites.all[site]; s.Kind.Class() == event.ClassDevice {
			all = append(all, Extent{proc, from, to, s, time})
		}
	}
	for addr, r := range p.allocs.live[event.SpacePointer].all {
		add(addr, addr+r.size, r.time, r.site)
	}
	p.vmm.eachMapping(func(m *mapping) {
		if m.ph != nil && !m.ph.dead {
			add(m.addr, m.end, m.time, m.ph.site)
		}
	})
	sorting.Stable(all, func(a, b Extent) int {
		return cmp.Or(cmp.Compare(a.time, b.time), cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
	return all
}

// TakeExtents yields each that began or ended since it was called last, in order. Those of a
// process that is frozen, dropped or forgotten do not end.
func (l *Ledger) TakeExtents(yield func(*Extent) bool) { l.extents.Take(yield) }

// Changes are what changed since Take was called last, in order.
type Changes[T any] []T

// Add adds the latest change.
func (c *Changes[T]) Add(change T) { *c = append(*c, change) }

// Take yields the changes, and removes them. They may be read until the next Add.
func (c *Changes[T]) Take(yield func(*T) bool) {
	for i := range *c {
		if !yield(&(*c)[i]) {
			break
		}
	}
	if *c = (*c)[:0]; cap(*c) > 1<<10 {
		*c = nil // the end of a context must not keep its scratch
	}
}

// began and ended note the range of an allocation, if it is on a device.
func (p *process) began(space event.Space, from, to uint64, s *Site) {
	if space == event.SpacePointer && s.Kind.Class() == event.ClassDevice && p.followed() {
		p.l.extents.Add(Extent{Proc: p.id, From: from, To: to, Site: s})
	}
}

func (p *process) ended(space event.Space, from, to uint64) {
	if space == event.SpacePointer && p.followed() {
		p.l.extents.Add(Extent{Proc: p.id, From: from, To: to})
	}
}

func (p *process) followed() bool { return p.l.opt.Extents != nil && p.l.opt.Extents(p.id) }
