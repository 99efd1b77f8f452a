package ledger

import (
	"cmp"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/share"
)

// The tables of a Ledger are all processes' together. Each is a share.Table: when it is
// full, the processes that have most of it give back what they have beyond their share.
// They lose detail by that, and no bytes. The same events always make a process give back
// the same entries.

// A SharedTable is a table of which each process has a share.
type SharedTable uint8

// The tables.
const (
	SharedRows     SharedTable = iota // allocations with a row
	SharedExtra                       // allocations beyond those
	SharedMappings                    // mappings of physical memory
	SharedSites                       // call sites
	NumShared
)

// A Shortage is a process that wanted more of a table than its share.
type Shortage struct {
	Proc      event.Process
	Table     SharedTable
	Used, Max int
	Lost      uint64 // entries that it gave back or did not get
}

func (l *Ledger) makeTables() {
	l.tables = [NumShared]*share.Table[*process]{
		SharedRows:     share.New(l.opt.MaxLive, (*process).giveRows),
		SharedExtra:    share.New(l.opt.MaxUnattributed, (*process).giveExtra),
		SharedMappings: share.New(l.opt.MaxMappings, (*process).giveMappings),
		SharedSites:    share.New(l.opt.MaxSites, (*process).giveSites),
	}
}

// join gives p a share of each table.
func (l *Ledger) join(p *process) {
	for i, t := range l.tables {
		t.Join(&p.shares[i], p)
	}
	if l.opt.User == nil {
		return
	}
	if user, ok := l.opt.User(p.id); ok {
		l.SetUser(p.id, user)
	}
}

// SetUser sets which user a process runs as: what the process has counts as that user's.
func (l *Ledger) SetUser(proc event.Process, user uint32) {
	if p := l.procs[proc]; p != nil {
		for i := range p.shares {
			p.shares[i].SetUser(user)
		}
	}
}

// Shortages yields the shortages of all processes, in no order.
func (l *Ledger) Shortages(yield func(Shortage) bool) {
	maxima := [NumShared]int{l.opt.MaxLive, l.opt.MaxUnattributed, l.opt.MaxMappings, l.opt.MaxSites}
	for i, t := range l.tables {
		for p, s := range t.Shortages {
			if !yield(Shortage{p.id, SharedTable(i), s.Len(), maxima[i], s.Lost()}) {
				return
			}
		}
	}
}

// rowRoom returns whether there is room for one more row of p. Rows of ended processes
// make room first.
func (p *process) rowRoom() bool {
	if p.l.tables[SharedRows].Full() {
		p.l.reclaim(p)
	}
	return p.shares[SharedRows].Room(1)
}

// A sample picks about n of a number of things by their identity: the same ones in
// whichever order all are visited.
type sample struct{ least uint64 }

func sampleOf(n, all int) sample {
	if n >= all {
		return sample{0}
	}
	return sample{^uint64(0) - uint64(float64(n)/float64(all)*float64(1<<63))<<1}
}

// has returns whether the thing that a and b identify is picked.
func (s sample) has(a, b uint64) bool { return share.Mix(a, b) >= s.least }

// wider picks twice as many.
func (s sample) wider() sample { return sample{s.least - min(s.least, ^s.least+1)} }

// give has pick give back n of p's entries in a table, by ever wider samples because the
// first ones may pick too few. pick gets how many are still to come.
func (p *process) give(of SharedTable, n int, pick func(sample, int)) {
	h := &p.shares[of]
	all := h.Len()
	for s := sampleOf(n, all); ; s = s.wider() {
		pick(s, n-(all-h.Len()))
		if all-h.Len() >= n || s.least == 0 {
			break
		}
	}
	h.AddLost(all - h.Len())
}

// giveRows moves allocations to the synthetic sites, and takes their rows away.
func (p *process) giveRows(n int) {
	if p.exited {
		p.loss.Add(lossEndedRows, uint64(p.shares[SharedRows].Len()))
		p.freeze()
		return
	}
	p.give(SharedRows, n, func(s sample, n int) {
		moved := map[*physical]bool{}
		for _, x := range p.picked(s, n) {
			if x.ph != nil {
				p.vmm.demote(x.ph)
				moved[x.ph] = true
			} else {
				p.allocs.demote(&x.item)
			}
		}
		p.vmm.reportMoved(moved)
	})
}

// A pick is an allocation that a sample has.
type pick struct {
	mixed uint64
	item
}

// picked returns n of p's allocations that s has, or fewer if it has no more.
func (p *process) picked(s sample, n int) (all []pick) {
	for x := range p.items {
		if mixed := share.Mix(x.addr, x.row.time); mixed >= s.least {
			all = append(all, pick{mixed, x})
		}
	}
	slices.SortFunc(all, func(a, b pick) int {
		return cmp.Or(cmp.Compare(b.mixed, a.mixed), cmp.Compare(a.space, b.space), cmp.Compare(a.addr, b.addr))
	})
	return all[:min(n, len(all))]
}

// demote makes an allocation one beyond MaxLive, or ends it if there is no room.
func (t *allocTable) demote(x *item) {
	p, r := t.p, &x.row
	s, w := p.sites.all[r.site], one(r.size)
	if hears := p.l.opt.Listener; hears != nil && hears.Demoted(p.id, x.addr) {
		t.end(x.space, x.addr, r)
		return
	}
	if r.size > extraMaxSize || !p.shares[SharedExtra].Room(1) {
		t.end(x.space, x.addr, r)
		t.forget(s, r.size)
		return
	}
	t.live[x.space].remove(x.addr)
	t.removeFromOwners(r, s.Kind)
	extra := extraOf(s.Kind, r.ctx, r.size)
	t.extra[x.space][x.addr] = extra
	t.addExtraToOwners(extra, 1)
	_, into := p.demoteUse(s, w)
	p.moved(x.space, x.addr, x.addr+r.size, into)
}

// demote does as allocTable.demote for physical memory.
func (t *vmmTable) demote(ph *physical) {
	p, s, w := t.p, t.p.sites.all[ph.site], one(ph.size)
	if !p.shares[SharedExtra].Room(1) {
		t.forget(ph)
		return
	}
	ph.site, _ = p.demoteUse(s, w)
	ph.extra = true
}

// forget makes physical memory unknown.
func (t *vmmTable) forget(ph *physical) {
	ph.blind = true // so that end counts it as unknown
	t.end(ph)
	t.p.sites.all[ph.site].uncountFree(one(ph.size))
	t.p.loss.Add(lossUnknown, 1)
}

// demoteUse makes an allocation in use at s one beyond MaxLive.
func (p *process) demoteUse(s *Site, w tally) (id uint32, into *Site) {
	p.addRows(-1)
	p.shares[SharedExtra].Add(1)
	p.sites.unattributed[s.Kind.Class()] += w.bytes
	p.loss.Add(lossUnattributed, 1)
	id, into = p.sites.synthetic(s.Kind)
	p.sites.move(s, into, w)
	return id, into
}

// forget makes an allocation at s unknown that was just ended for want of room.
func (t *allocTable) forget(s *Site, size uint64) {
	s.uncountFree(one(size))
	t.addUnknown(size)
	t.p.loss.Add(lossUnknown, 1)
}

// reportMoved reports the mappings of memory that is at another site now.
func (t *vmmTable) reportMoved(moved map[*physical]bool) {
	if len(moved) == 0 {
		return
	}
	t.eachMapping(func(m *mapping) {
		if moved[m.ph] && !m.ph.dead {
			t.p.moved(event.SpacePointer, m.addr, m.end, t.p.sites.all[m.ph.site])
		}
	})
}

// giveExtra makes allocations of p that have no row unknown.
func (p *process) giveExtra(n int) {
	p.give(SharedExtra, n, func(s sample, _ int) {
		for space, rows := range p.allocs.extra {
			for addr, x := range rows {
				if s.has(addr, 0) {
					p.allocs.endExtra(event.Space(space), addr, x)
					_, at := p.sites.synthetic(x.kind())
					p.allocs.forget(at, x.size())
				}
			}
		}
		for _, ph := range p.vmm.handles {
			if ph.extra && s.has(ph.handle, ph.time) {
				p.vmm.forget(ph)
			}
		}
	})
}

// giveMappings removes mappings of p: the end of the memory that they show is not seen.
func (p *process) giveMappings(n int) {
	t := &p.vmm
	hits := t.hits // of the mapping that wants room
	defer func() { t.hits = hits }()
	p.give(SharedMappings, n, func(s sample, _ int) {
		t.hits = nil
		t.eachMapping(func(m *mapping) {
			if s.has(m.addr, m.time) {
				t.hits = append(t.hits, m)
				m.ph.markBlind()
			}
		})
		p.loss.Add(lossMappings, uint64(len(t.hits)))
		t.endMappings()
		for array, parts := range t.parts {
			for index, x := range parts {
				if s.has(array+index<<40, x.time) {
					x.ph.markBlind()
					p.loss.Add(lossMappings, 1)
					t.endPart(array, index, x)
				}
			}
		}
	})
}

// giveSites folds call sites of p, those that hold least first.
func (p *process) giveSites(n int) {
	all := p.sites.foldable(func(*Site) bool { return true })
	all = all[:min(n, len(all))]
	p.moveToSynthetic(all)
	for _, i := range all {
		p.sites.foldSite(i)
	}
	p.shares[SharedSites].AddLost(len(all))
}

// moveToSynthetic moves what is in use at some sites to the synthetic sites of their kinds.
func (p *process) moveToSynthetic(sites []uint32) {
	gone := make(map[uint32]bool, len(sites))
	for _, i := range sites {
		if s := p.sites.all[i]; s.InuseObjects != 0 || s.InuseBytes != 0 {
			gone[i] = true
		}
	}
	if len(gone) == 0 {
		return
	}
	moved := map[*physical]bool{}
	for x := range p.items {
		if !gone[x.row.site] {
			continue
		}
		from := p.sites.all[x.row.site]
		id, into := p.sites.synthetic(from.Kind)
		x.row.site = id
		if x.ph != nil {
			x.ph.site = id
			moved[x.ph] = true
		} else {
			p.allocs.live[x.space].put(x.addr, &x.row)
		}
		p.sites.move(from, into, one(x.row.size))
		p.moved(x.space, x.addr, x.addr+x.row.size, into)
	}
	p.vmm.reportMoved(moved)
}
