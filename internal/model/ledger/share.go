package ledger

import (
	"cmp"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/share"
)

// The tables of a Ledger are all processes' together. Each is a share.Table: when it is
// full, the processes that have most of it give back what they have beyond their share,
// and lose detail by that and no bytes. What a process gives back is the same each time
// that the same events are applied.

// A Shared is a table of which a process has a share.
type Shared uint8

// The tables.
const (
	SharedRows     Shared = iota // allocations with a row
	SharedExtra                  // allocations beyond those
	SharedMappings               // mappings of physical memory
	SharedSites                  // call sites
	NumShared
)

// A Shortage says of a process that it wanted more of a table than its share.
type Shortage struct {
	Proc      event.Process
	Of        Shared
	Held, Max int
	Lost      uint64 // entries that it gave back or did not get
}

func (l *Ledger) makeTables() {
	l.tables = [NumShared]*share.Table[*process]{
		SharedRows:     share.New(l.opt.MaxLive, l.giveRows),
		SharedExtra:    share.New(l.opt.MaxUnattributed, l.giveExtra),
		SharedMappings: share.New(l.opt.MaxMappings, l.giveMappings),
		SharedSites:    share.New(l.opt.MaxSites, l.giveSites),
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
		l.Belongs(p.id, user)
	}
}

// Belongs says which user a process runs as: what is told of it later counts as that
// user's, and so does what it has.
func (l *Ledger) Belongs(proc event.Process, user uint32) {
	if p := l.procs[proc]; p != nil {
		for i := range p.shares {
			p.shares[i].Of(user)
		}
	}
}

// Shortages yields the shortages of all processes, in no order.
func (l *Ledger) Shortages(yield func(Shortage) bool) {
	maxima := [NumShared]int{l.opt.MaxLive, l.opt.MaxUnattributed, l.opt.MaxMappings, l.opt.MaxSites}
	for i, t := range l.tables {
		for p, s := range t.Short {
			if !yield(Shortage{p.id, Shared(i), s.Len(), maxima[i], s.Lost()}) {
				return
			}
		}
	}
}

// rowRoom tells whether p may have a row more. Rows of ended processes go first.
func (l *Ledger) rowRoom(p *process) bool {
	if l.tables[SharedRows].Full() {
		l.reclaim(p)
	}
	return p.shares[SharedRows].Room(1)
}

// A sample picks about n of a number of things by what they are: the same ones, in
// whichever order all are looked through.
type sample struct{ least uint64 }

func sampleOf(n, all int) sample {
	if n >= all {
		return sample{0}
	}
	return sample{^uint64(0) - uint64(float64(n)/float64(all)*float64(1<<63))<<1}
}

// has tells whether the thing that a and b make up is picked.
func (s sample) has(a, b uint64) bool { return share.Mix(a, b) >= s.least }

// wider picks twice as many.
func (s sample) wider() sample { return sample{s.least - min(s.least, ^s.least+1)} }

// give has pick give back n of what p has in a table, by ever wider samples: what they
// pick at first may be too few. pick is told how many are still to come.
func (p *process) give(of Shared, n int, pick func(sample, int)) {
	h := &p.shares[of]
	all := h.Len()
	for s := sampleOf(n, all); ; s = s.wider() {
		pick(s, n-(all-h.Len()))
		if all-h.Len() >= n || s.least == 0 {
			break
		}
	}
	h.Lose(all - h.Len())
}

// giveRows puts allocations of p under no call stack.
func (l *Ledger) giveRows(p *process, n int) {
	l.touched(p)
	if p.exited {
		l.loss.Add(lossEndedRows, uint64(p.shares[SharedRows].Len()))
		l.freeze(p)
		return
	}
	p.give(SharedRows, n, func(s sample, n int) {
		moved := map[*physical]bool{}
		for _, x := range p.picked(s, n) {
			if x.ph != nil {
				l.demotePhysical(p, x.ph)
				moved[x.ph] = true
			} else {
				r := p.live[x.space][x.addr]
				l.demote(p, x.space, x.addr, &r)
			}
		}
		l.moveMappings(p, moved)
	})
}

// A pick is an allocation that has a row.
type pick struct {
	mixed, addr uint64
	space       event.Space
	ph          *physical // nil but for physical memory, whose handle addr is
}

// picked returns n of p's allocations that s has, or fewer if it has no more.
func (p *process) picked(s sample, n int) (all []pick) {
	for space, rows := range p.live {
		for addr, r := range rows {
			if x := share.Mix(addr, r.time); x >= s.least {
				all = append(all, pick{x, addr, event.Space(space), nil})
			}
		}
	}
	for _, ph := range p.handles {
		if x := share.Mix(ph.handle, ph.time); x >= s.least && !ph.extra {
			all = append(all, pick{x, ph.handle, event.NumSpaces, ph})
		}
	}
	slices.SortFunc(all, func(a, b pick) int {
		return cmp.Or(cmp.Compare(b.mixed, a.mixed), cmp.Compare(a.space, b.space), cmp.Compare(a.addr, b.addr))
	})
	return all[:min(n, len(all))]
}

// demote makes a row one beyond MaxLive.
func (l *Ledger) demote(p *process, space event.Space, addr uint64, r *row) {
	s := p.sites[r.site]
	if l.opt.Demoted != nil {
		l.opt.Demoted(p.id, addr)
		l.endRow(p, space, addr, r)
		return
	}
	if r.size > extraMaxSize || !p.shares[SharedExtra].Room(1) {
		l.loseRow(p, space, addr, r)
		return
	}
	l.changed(p.allocation(space, addr, r), true)
	delete(p.live[space], addr)
	l.addRows(p, -1)
	switch s.Kind {
	case event.KindAsync:
		p.poolHold(r.owner, -1, -int64(r.size))
		p.poolHold(0, 1, int64(r.size))
	case event.KindGraph:
		p.graphHold(r.owner, -1)
	}
	x := extraOf(s.Kind, r.ctx, r.size)
	p.extra[space][addr] = x
	p.shares[SharedExtra].Add(1)
	_, into := p.synthetic(s.Kind)
	w := l.weigh(r.size)
	p.unattributed[s.Kind.Class()] += w.Bytes
	p.move(s, into, w)
	l.loss.Add(lossUnattributed, 1)
	l.changed(p.beyond(space, addr, x), false)
	l.moved(p, space, addr, addr+r.size, into)
}

// loseRow takes an allocation that has a row out of what is in use: nothing of it is kept.
func (l *Ledger) loseRow(p *process, space event.Space, addr uint64, r *row) {
	w := l.weigh(r.size)
	s := p.sites[r.site]
	l.endRow(p, space, addr, r)
	s.lose(w)
	p.unknown(r.size)
	l.loss.Add(lossUnknown, 1)
}

// lose takes back that what is known no more was freed.
func (s *Site) lose(w Weight) {
	s.FreedObjects -= w.Objects
	s.FreedBytes -= w.Bytes
}

// demotePhysical does as demote for physical memory.
func (l *Ledger) demotePhysical(p *process, ph *physical) {
	s := p.sites[ph.site]
	if !p.shares[SharedExtra].Room(1) {
		ph.blind = true // so that it counts as unknown
		l.endPhysical(p, ph)
		s.lose(Weight{1, int64(ph.size)})
		l.loss.Add(lossUnknown, 1)
		return
	}
	l.changed(p.allocated(ph), true)
	l.addRows(p, -1)
	id, into := p.synthetic(s.Kind)
	ph.extra, ph.site = true, id
	p.shares[SharedExtra].Add(1)
	w := Weight{1, int64(ph.size)}
	p.unattributed[s.Kind.Class()] += w.Bytes
	p.move(s, into, w)
	l.loss.Add(lossUnattributed, 1)
	l.changed(p.allocated(ph), false)
}

// move puts what is in use at one site of p to another.
func (p *process) move(from, to *Site, w Weight) {
	p.settle(from)
	p.settle(to)
	from.InuseObjects -= w.Objects
	from.InuseBytes -= w.Bytes
	to.InuseObjects += w.Objects
	to.InuseBytes += w.Bytes
	if onDevice(from.Kind) {
		p.devices[from.device].Bytes -= w.Bytes
		p.devices[to.device].Bytes += w.Bytes
	}
}

// moveMappings tells Extents of the mappings that show memory that has another site now.
func (l *Ledger) moveMappings(p *process, moved map[*physical]bool) {
	if l.opt.Extents == nil || p.ranges == nil || len(moved) == 0 {
		return
	}
	p.ranges.Ascend(func(m *mapping) bool {
		if moved[m.ph] && !m.ph.dead {
			l.moved(p, event.SpacePointer, m.addr, m.end, p.sites[m.ph.site])
		}
		return true
	})
}

// giveExtra takes allocations of p that have no row out of what is in use.
func (l *Ledger) giveExtra(p *process, n int) {
	l.touched(p)
	p.give(SharedExtra, n, func(s sample, _ int) {
		lose := func(k event.Kind, size uint64) {
			_, at := p.synthetic(k)
			at.lose(l.weigh(size))
			l.loss.Add(lossUnknown, 1)
		}
		for space, rows := range p.extra {
			for addr, x := range rows {
				if s.has(addr, 0) {
					l.endExtraRow(p, event.Space(space), addr, x)
					p.unknown(uint64(x.size()))
					lose(x.kind(), uint64(x.size()))
				}
			}
		}
		for _, ph := range p.handles {
			if ph.extra && s.has(ph.handle, ph.time) {
				kind := p.sites[ph.site].Kind
				ph.blind = true
				l.endPhysical(p, ph)
				lose(kind, ph.size)
			}
		}
	})
}

// giveMappings makes p's memory forget mappings of it.
func (l *Ledger) giveMappings(p *process, n int) {
	l.touched(p)
	hits := l.hits // of the process that there is room made for
	defer func() { l.hits = hits }()
	p.give(SharedMappings, n, func(s sample, _ int) {
		l.hits = nil
		if p.ranges != nil {
			p.ranges.Ascend(func(m *mapping) bool {
				if s.has(m.addr, m.time) {
					l.hits = append(l.hits, m)
				}
				return true
			})
		}
		for _, m := range l.hits {
			m.ph.unseen()
		}
		l.loss.Add(lossMappings, uint64(len(l.hits)))
		l.endRanges(p)
		for array, parts := range p.parts {
			for index, x := range parts {
				if s.has(array+index<<40, x.time) {
					x.ph.unseen()
					l.loss.Add(lossMappings, 1)
					l.endPart(p, array, index, x)
				}
			}
		}
	})
}

// unseen says that the end of a mapping of ph will not be seen.
func (ph *physical) unseen() {
	if ph != nil {
		ph.blind = true
	}
}

// giveSites folds call sites of p: those that hold nothing first, by how long ago they
// were called, and then those that hold least.
func (l *Ledger) giveSites(p *process, n int) {
	l.touched(p)
	var all []uint32
	for i, s := range p.sites {
		if s != nil && !s.Synthetic {
			all = append(all, uint32(i))
		}
	}
	slices.SortFunc(all, func(a, b uint32) int {
		x, y := p.sites[a], p.sites[b]
		return cmp.Or(cmp.Compare(x.InuseBytes, y.InuseBytes), cmp.Compare(x.InuseObjects, y.InuseObjects), cmp.Compare(x.last, y.last), cmp.Compare(a, b))
	})
	all = all[:min(n, len(all))]
	l.empty(p, all)
	for _, i := range all {
		l.foldSite(p, i)
	}
	p.shares[SharedSites].Lose(len(all))
}

// empty puts what is in use at sites of p to the synthetic ones of their kinds.
func (l *Ledger) empty(p *process, sites []uint32) {
	gone := make(map[uint32]bool, len(sites))
	for _, i := range sites {
		if s := p.sites[i]; s.InuseObjects != 0 || s.InuseBytes != 0 {
			gone[i] = true
		}
	}
	if len(gone) == 0 {
		return
	}
	for space, rows := range p.live {
		for addr, r := range rows {
			if !gone[r.site] {
				continue
			}
			from := p.sites[r.site]
			l.changed(p.allocation(event.Space(space), addr, &r), true)
			id, into := p.synthetic(from.Kind)
			r.site = id
			rows[addr] = r
			p.move(from, into, l.weigh(r.size))
			l.changed(p.allocation(event.Space(space), addr, &r), false)
			l.moved(p, event.Space(space), addr, addr+r.size, into)
		}
	}
	moved := map[*physical]bool{}
	for _, ph := range p.handles {
		if !gone[ph.site] {
			continue
		}
		from := p.sites[ph.site]
		l.changed(p.allocated(ph), true)
		id, into := p.synthetic(from.Kind)
		ph.site = id
		p.move(from, into, Weight{1, int64(ph.size)})
		l.changed(p.allocated(ph), false)
		moved[ph] = true
	}
	l.moveMappings(p, moved)
}
