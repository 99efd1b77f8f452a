package ledger

import (
	"math"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// Visit writes the Ledger to a keyframe, or reads it from one into a new Ledger of the same
// Options. That then shows the same figures, and further events change them as they would here.
// What follows from the rows, such as how many of them a context has, is counted again.
// Options.Changed is called with each site. No extent begins.
func (l *Ledger) Visit(f *record.Fields) {
	l.compact()
	f.Uint(&l.reports)
	record.Signed(f, &l.events, &l.visited)
	at := 0
	record.List(f, &l.order, 8, l.opt.MaxProcesses, func(p **process) {
		if f.Reading() {
			*p = &process{l: l, loss: l.loss, at: at}
		}
		(*p).visit(f)
		at++
	})
	listed := map[*process]bool{}
	for _, list := range []*[]*process{&l.ended, &l.idle} {
		record.List(f, list, 1, len(l.order), func(p **process) {
			at := 0
			if !f.Reading() {
				at = (*p).at
			}
			if record.Index(f, &at, len(l.order)); f.Reading() && !f.Failed() {
				*p = l.order[at]
				f.Require((*p).exited && !listed[*p])
				listed[*p] = true
			}
		})
	}
	record.List(f, &l.gone.queue, 2, l.gone.max, func(id *event.Process) {
		f.Process(id)
		_, twice := l.gone.set[*id]
		if f.Require(!twice && l.procs[*id] == nil); f.Reading() {
			l.gone.set[*id] = struct{}{}
		}
	})
	f.Loss(l.loss)
}

// visit visits a process. One that is read comes into the tables of its Ledger.
func (p *process) visit(f *record.Fields) {
	f.Process(&p.id)
	active := p.active
	f.Bool(&active, &p.exited, &p.frozen)
	f.Uint(&p.exec, &p.end)
	f.Require(p.l.procs[p.id] == nil)
	if f.Failed() {
		return
	}
	if p.l.procs[p.id] = p; !active {
		return
	}
	p.activate()
	p.sites.visit(f)
	p.contexts.visit(f)
	p.pools.visit(f)
	p.graphs.visit(f)
	p.allocs.visit(f)
	p.vmm.visit(f)
	if !f.Reading() || f.Failed() {
		return
	}
	for _, i := range p.sites.free {
		f.Require(p.sites.all[i] == nil)
	}
	for _, i := range p.contexts.free {
		f.Require(p.contexts.all[i].live == 0)
	}
	for _, i := range p.pools.free {
		f.Require(p.pools.all[i].live == 0)
	}
	for _, i := range p.graphs.free {
		f.Require(p.graphs.all[i].live+p.graphs.all[i].captures == 0)
	}
	for _, s := range p.sites.all {
		if s != nil {
			p.l.SiteChanged(s)
		}
	}
}

// visit visits the values, of which there are least in an empty table. While reading, it then
// calls used with those that are not free.
func (s *slots[T]) visit(f *record.Fields, least, limit int, visit func(*T), used func(uint32, *T)) {
	record.List(f, &s.all, 1, limit, visit)
	f.Require(len(s.all) >= least)
	free := map[uint32]bool{}
	record.List(f, &s.free, 1, len(s.all), func(i *uint32) {
		record.Unsigned(f, i)
		f.Require(int(*i) >= least && int(*i) < len(s.all) && !free[*i])
		free[*i] = true
	})
	for i := least; f.Reading() && !f.Failed() && i < len(s.all); i++ {
		if !free[uint32(i)] {
			used(uint32(i), &s.all[i])
		}
	}
}

func (t *siteTable) visit(f *record.Fields) {
	t.each(func(*Site) bool { return true }) // so that none is of an older epoch
	record.List(f, &t.devices, 2, maxDevices+1, func(d *DeviceUse) {
		record.Signed(f, &d.Device)
		record.Signed(f, &d.Bytes)
	})
	f.Require(len(t.devices) > 0)
	for class := range t.inuse {
		record.Signed(f, &t.inuse[class], &t.unattributed[class], &t.peak[class])
	}
	record.Signed(f, &t.liveObjects, &t.allocated, &t.failed, &t.outOfMemory)
	record.Signed(f, &t.foldAgain)
	i := uint32(0)
	t.slots.visit(f, 0, math.MaxInt, func(s **Site) {
		t.visitSite(f, i, s)
		i++
	}, func(uint32, **Site) {})
	for kind := range t.other {
		record.UpTo(f, &t.other[kind], uint64(len(t.all)))
		if i := t.other[kind]; i > 0 {
			s := t.all[i-1]
			f.Require(s != nil && s.Synthetic && int(s.Kind) == kind)
		}
	}
}

// visitSite visits the i-th site, or that it was folded.
func (t *siteTable) visitSite(f *record.Fields, i uint32, at **Site) {
	there := *at != nil
	if f.Bool(&there); !there {
		return
	}
	if f.Reading() {
		*at = &Site{SiteKey: SiteKey{Proc: t.p.id}, reports: t.p.l.reports, index: i}
	}
	s := *at
	record.UpTo(f, &s.Kind, uint64(event.NumKinds)-1)
	record.Unsigned(f, &s.API, &s.Outer)
	record.Signed(f, &s.Device)
	f.Uint(&s.Stack, &s.Ctx, &s.last)
	f.Bool(&s.Synthetic, &s.HasTensors)
	record.Signed(f, &s.AllocObjects, &s.AllocBytes, &s.FreedObjects, &s.FreedBytes, &s.FailedObjects, &s.FailedBytes,
		&s.ReportedObjects, &s.ReportedBytes, &s.PeakBytes, &s.InuseObjects, &s.InuseBytes)
	record.Index(f, &s.device, len(t.devices))
	first, found := t.at[s.key()]
	found = found && first == i && !s.Synthetic // else its device became known later
	if f.Bool(&found); !f.Reading() || f.Failed() {
		return
	}
	if found {
		_, twice := t.at[s.key()]
		f.Require(!twice)
		t.at[s.key()] = i
	}
	if !s.Synthetic {
		f.Require(!t.p.l.full(Sites))
		t.p.count(Sites, 1)
	}
}

// Has returns whether s is a call site still.
func (l *Ledger) Has(s *Site) bool {
	all := l.lookup(s.Proc).sites.all
	return int(s.index) < len(all) && all[s.index] == s
}

// VisitSite visits which call site of a process it is, s while writing, and returns that.
func (l *Ledger) VisitSite(f *record.Fields, proc event.Process, s *Site) *Site {
	all, i := l.lookup(proc).sites.all, uint32(0)
	if s != nil {
		i = s.index
	}
	if record.Index(f, &i, len(all)); f.Failed() {
		return nil
	}
	f.Require(all[i] != nil)
	return all[i]
}

func (t *contextTable) visit(f *record.Fields) {
	t.last = 0
	record.Signed(f, &t.older)
	t.slots.visit(f, 2, 1+maxContexts, func(c *context) {
		f.Uint(&c.handle, &c.created)
		f.Bool(&c.older, &c.green)
		record.UpTo(f, &c.references, maxReferences)
		record.Signed(f, &c.device)
	}, func(i uint32, c *context) {
		_, twice := t.at[c.handle]
		f.Require(!twice && c.handle != 0)
		t.at[c.handle] = i
	})
	if !f.Reading() {
		return
	}
	for key, i := range t.p.sites.at {
		if c, ok := t.at[key.ctx]; ok && key.ctx != 0 {
			t.all[c].unresolved = append(t.all[c].unresolved, i)
		}
	}
}

func (t *poolTable) visit(f *record.Fields) {
	record.Signed(f, &t.inuse, &t.high)
	t.slots.visit(f, 1, 1+maxPools, func(q *pool) {
		f.Uint(&q.key.handle, &q.handle)
		record.Signed(f, &q.key.device, &q.device)
		record.Signed(f, &q.high, &q.inuse)
		f.Bool(&q.destroyed)
		record.UpTo(f, &q.kind, uint64(event.NumKinds)-1)
	}, func(i uint32, q *pool) {
		keys := []poolKey{q.key}
		if q.handle != 0 {
			keys = append(keys, poolKey{handle: q.handle})
		}
		for _, key := range keys {
			_, twice := t.at[key]
			f.Require(!twice)
			t.at[key] = i
		}
	})
	record.Map(f, t.current, 2, maxPools, func(device *int32, handle *uint64) {
		record.Signed(f, device)
		f.Uint(handle)
	})
}

func (t *graphTable) visit(f *record.Fields) {
	t.slots.visit(f, 1, 1+maxGraphs, func(g *graph) {
		f.Uint(&g.handle, &g.time)
		f.Bool(&g.ran)
	}, func(i uint32, g *graph) {
		_, twice := t.at[g.handle]
		if f.Require(!twice); g.handle != 0 {
			t.at[g.handle] = i
		}
	})
	record.List(f, &t.captures, 5, maxCaptures, func(c *capture) {
		f.Uint(&c.stream, &c.time)
		record.Unsigned(f, &c.thread, &c.by)
		if record.Index(f, &c.graph, len(t.all)); f.Reading() && c.graph != 0 {
			t.all[c.graph].captures++
		}
	})
}

func (t *allocTable) visit(f *record.Fields) {
	record.Signed(f, &t.unknownObjects, &t.unknownFrees, &t.unknownBytes, &t.unmatchedFrees)
	for space := range t.live {
		t.visitRows(f, &t.live[space])
	}
	for space := range t.extra {
		record.Map(f, t.extra[space], 2, t.p.l.opt.MaxUnattributed, func(addr *uint64, r *extraRow) {
			f.Uint(addr, (*uint64)(r))
			f.Require(r.kind() < event.NumKinds && int(r.ctx()) < len(t.p.contexts.all) && !t.p.l.full(Extra))
			if f.Reading() && !f.Failed() {
				t.p.count(Extra, 1)
				t.p.contexts.all[r.ctx()].live++
				if r.kind().Async() {
					t.p.pools.all[0].live++
				}
			}
		})
	}
	record.Map(f, t.opened, 2, math.MaxInt, func(addr *uint64, n *uint32) {
		f.Uint(addr)
		record.Unsigned(f, n)
	})
}

// visitRows visits the rows in the order of their places.
func (t *allocTable) visitRows(f *record.Fields, rows *rowTable) {
	p := t.p
	places := make([]struct{}, rows.n)
	place := 0
	var last row
	at := uint64(0)
	record.List(f, &places, 6, p.l.opt.MaxLive, func(*struct{}) {
		var addr uint64
		var r row
		if !f.Reading() {
			addr, r = rows.at(place).addr(), rows.at(place).row()
		}
		f.Near(&addr, &at)
		f.Near(&r.time, &last.time)
		f.Near(&r.size, &last.size)
		p.visitReferences(f, &r)
		f.Require(!p.l.full(Rows))
		if f.Reading() && !f.Failed() {
			rows.put(addr, &r)
			p.addRow(&r)
			f.Require(rows.n == place+1)
		}
		place++
	})
}

// visitReferences visits the indexes that a row has.
func (p *process) visitReferences(f *record.Fields, r *row) {
	record.Index(f, &r.site, len(p.sites.all))
	record.Index(f, &r.ctx, len(p.contexts.all))
	record.UpTo(f, &r.owner, max(maxPools, maxGraphs))
	if !f.Reading() || f.Failed() {
		return
	}
	if f.Require(p.sites.all[r.site] != nil); f.Failed() {
		return
	}
	owners := 1 // of memory that comes from no pool and no graph
	switch kind := p.sites.all[r.site].Kind; {
	case kind.Async():
		owners = len(p.pools.all)
	case kind == event.KindGraph:
		owners = len(p.graphs.all)
	}
	f.Require(int(r.owner) < owners)
}

// addRow counts a row that was read in the tables that it refers to.
func (p *process) addRow(r *row) {
	p.addRows(1)
	p.contexts.all[r.ctx].live++
	switch kind := p.sites.all[r.site].Kind; {
	case kind.Async():
		p.pools.all[r.owner].live++
	case kind == event.KindGraph && r.owner != 0:
		p.graphs.all[r.owner].live++
	}
}

// visit visits the physical memory, and then what shows it by its number: 0 is memory that was
// never seen created.
func (t *vmmTable) visit(f *record.Fields) {
	all, number := []*physical{nil}, map[*physical]int{nil: 0}
	add := func(ph *physical) {
		if _, known := number[ph]; !known {
			number[ph] = len(all)
			all = append(all, ph)
		}
	}
	for _, ph := range t.handles {
		add(ph)
	}
	var mappings []*mapping
	t.eachMapping(func(m *mapping) {
		mappings = append(mappings, m)
		add(m.ph)
	})
	var parts []arrayPart
	for array, of := range t.parts {
		for index, x := range of {
			parts = append(parts, arrayPart{array, index, x})
			add(x.ph)
		}
	}
	some := all[1:]
	record.List(f, &some, 8, math.MaxInt, func(ph **physical) { t.visitMemory(f, ph) })
	all = append(all[:1], some...)
	limit, at := t.p.l.opt.MaxMappings, uint64(0)
	record.List(f, &mappings, 4, limit, func(m **mapping) {
		x := record.Make(f, m)
		f.Near(&x.addr, &at)
		f.Near(&x.end, &at)
		f.Uint(&x.time)
		f.Require(x.addr < x.end)
		if t.visitShown(f, &x.ph, all, number); f.Reading() && !f.Failed() {
			f.Require(t.insert(x) == nil)
		}
	})
	record.List(f, &parts, 5, limit, func(x *arrayPart) {
		f.Uint(&x.array, &x.index, &x.size, &x.time)
		if t.visitShown(f, &x.ph, all, number); f.Reading() && !f.Failed() {
			_, twice := t.parts[x.array][x.index]
			f.Require(!twice)
			t.setPart(x.array, x.index, x.part)
		}
	})
}

// An arrayPart is a part of a sparse array, and where it is.
type arrayPart struct {
	array, index uint64
	part
}

func (t *vmmTable) visitMemory(f *record.Fields, at **physical) {
	ph := record.Make(f, at)
	r := row{site: ph.site}
	f.Uint(&ph.handle, &ph.size, &ph.time)
	record.Signed(f, &ph.refs)
	f.Bool(&ph.dead, &ph.extra, &ph.blind)
	t.p.visitReferences(f, &r)
	if !f.Reading() || f.Failed() {
		return
	}
	if ph.site = r.site; ph.dead {
		return
	}
	f.Require(t.handles[ph.handle] == nil)
	t.handles[ph.handle] = ph
	of := Rows
	if ph.extra {
		of = Extra
	}
	f.Require(!t.p.l.full(of))
	if ph.extra {
		t.p.count(of, 1)
	} else {
		t.p.addRows(1)
	}
}

// visitShown visits the memory that a mapping shows, by its number.
func (t *vmmTable) visitShown(f *record.Fields, ph **physical, all []*physical, number map[*physical]int) {
	i := number[*ph]
	record.Index(f, &i, len(all))
	f.Require(!t.p.l.full(Mappings))
	if !f.Reading() || f.Failed() {
		return
	}
	t.p.count(Mappings, 1)
	if *ph = all[i]; i != 0 {
		all[i].maps++
	}
}
