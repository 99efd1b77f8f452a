package tensors

import (
	"math"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// Visit writes the Ledger to a keyframe, or reads it from one into a new Ledger, whose driver
// layer was read before. That then shows the same figures, and further events change them as they
// would here. TakePieces yields all that is read.
func (l *Ledger) Visit(f *record.Fields) {
	l.Rows.Visit(f)
	f.Bool(&l.seen)
	all := sorting.Keys(l.procs, event.Process.Compare)
	record.List(f, &all, 8, maxProcesses, func(id *event.Process) {
		f.Process(id)
		p := l.procs[*id]
		if f.Reading() {
			f.Require(p == nil)
			p = l.add(*id)
		}
		if !f.Failed() {
			p.visit(f)
		}
	})
	l.fates.visit(f)
	l.freers.visit(f)
	f.Loss(l.loss)
	if f.Reading() && l.Layout && l.driver != nil {
		for p := range l.driver.Processes {
			if l.procs[p.Proc] == nil {
				l.add(p.Proc).adopt()
			}
		}
	}
}

func (p *process) visit(f *record.Fields) {
	f.Bool(&p.ended)
	record.Signed(f, &p.memory.returned)
	if p.ended {
		record.List(f, &p.last, 9, math.MaxInt, func(s *Segments) { s.visit(f) })
	} else {
		p.memory.visitExtents(f)
		p.visitTensors(f)
	}
	p.memory.visitPools(f)
	record.Map(f, p.devices, 5, math.MaxInt, func(index *int32, at **Device) {
		d := record.Make(f, at)
		record.Signed(f, &d.Index)
		record.Signed(f, &d.Bytes, &d.Before, &d.Reserved)
		f.Bool(&d.Reported)
		*index = d.Index
	})
	record.List(f, (*[]window)(&p.windows), 6, maxWindows, func(w *window) {
		record.Signed(f, &w.device)
		f.Uint(&w.pool.First, &w.pool.Second, &w.time)
		record.Unsigned(f, &w.thread)
		f.Bool(&w.alone)
	})
}

func (s *Segments) visit(f *record.Fields) {
	record.Signed(f, &s.Device)
	f.Uint(&s.Private.First, &s.Private.Second)
	record.UpTo(f, &s.Class, uint64(NumClasses)-1)
	record.Signed(f, &s.Count, &s.Blocks)
	record.Signed(f, &s.Reserved, &s.Allocated, &s.Largest, &s.Releasable)
}

func (m *memory) visitExtents(f *record.Fields) {
	var all []*extent
	m.extents.Ascend(func(x *extent) bool {
		all = append(all, x)
		return true
	})
	addr := uint64(0)
	record.List(f, &all, 8, math.MaxInt, func(at **extent) {
		if f.Reading() {
			*at = &extent{pool: &Pool{}}
		}
		x, handed := *at, (*at).handed
		f.Near(&x.from, &addr)
		f.Near(&x.to, &addr)
		f.Uint(&x.private.First, &x.private.Second)
		record.Signed(f, &x.device)
		f.Bool(&handed)
		site := m.p.l.driver.VisitSite(f, m.p.id, x.pool.Site)
		if f.Require(x.from < x.to); !f.Reading() || f.Failed() {
			return
		}
		for range m.within(x.from, x.to) {
			f.Require(false)
		}
		m.insert(x, site)
		if x.handed = false; handed {
			m.markHanded(x)
		}
	})
}

// visitTensors visits the threads of tensors. The rest of each is in its row.
func (p *process) visitTensors(f *record.Fields) {
	for a := range p.l.Rows.LiveOf(p.id) {
		f.Next()
		t, there := p.tensors[a.Addr]
		f.Require(!there && a.Handle == 0 && a.Space == event.SpacePointer)
		if f.Reading() {
			t = tensor{time: a.Time, size: a.Size, stack: a.Site.Stack, device: a.Site.Device}
		}
		if record.Unsigned(f, &t.thread); a.Site.Synthetic {
			f.Uint(&t.stack)
			record.Signed(f, &t.device)
		}
		p.memory.visitParts(f, &t, a.Addr)
		if !f.Reading() || f.Failed() {
			continue
		}
		p.tensors[a.Addr] = t
		p.add(a.Addr, &t, 1)
		p.l.pieces.Add(t.piece(p.id, a.Addr))
	}
}

// visitParts visits which parts of a tensor, which is at addr, lie in extents. An extent that came
// later has no part of it.
func (m *memory) visitParts(f *record.Fields, t *tensor, addr uint64) {
	parts := append([]part{t.first}, t.more...)
	left := t.size
	record.List(f, &parts, 2, maxParts+2, func(x *part) {
		rest, inside := left-x.bytes, x.in != nil
		f.Uint(&rest)
		f.Bool(&inside)
		f.Require(rest < left)
		x.bytes = left - rest
		if f.Reading() && inside {
			for x.in = range m.within(addr, addr+1) {
			}
			f.Require(x.in != nil && x.in.used+x.bytes <= x.in.to-x.in.from)
		}
		addr, left = addr+x.bytes, rest
	})
	f.Require(left == 0)
	t.first, t.more = parts[0], parts[1:]
}

func (m *memory) visitPools(f *record.Fields) {
	var all []*Pool // but for those whose call site is gone
	for s, pool := range m.pools {
		if m.p.l.driver.Has(s) {
			all = append(all, pool)
		}
	}
	record.List(f, &all, 6, math.MaxInt, func(at **Pool) {
		if f.Reading() {
			*at = &Pool{}
		}
		site := m.p.l.driver.VisitSite(f, m.p.id, (*at).Site)
		if f.Failed() {
			return
		}
		pool := m.pool(site)
		pool.visit(f, m)
		record.Signed(f, &pool.extents, &pool.HandedExtents)
		f.Bool(&pool.handed)
	})
	record.Map(f, m.outside, 3, math.MaxInt, func(device *int32, at **Pool) {
		if record.Signed(f, device); f.Reading() {
			*at = &Pool{Device: *device, epoch: m.p.epoch}
		}
		(*at).visit(f, m)
	})
}

func (pool *Pool) visit(f *record.Fields, m *memory) {
	m.updatePeak(pool)
	record.Signed(f, &pool.Device)
	record.Signed(f, &pool.Inuse, &pool.Peak)
}

func (t *fateTable) visit(f *record.Fields) {
	record.Map(f, t.processes, 4, maxProcesses, func(id *event.Process, at **processFates) {
		if f.Reading() {
			*at = &processFates{map[uint64]*Fate{}, map[uint32]made{}}
		}
		f.Process(id)
		record.Map(f, (*at).byStack, 4, math.MaxInt, func(stack *uint64, x **Fate) {
			fate := record.Make(f, x)
			f.Uint(stack, &fate.After)
			record.Signed(f, &fate.Crossed, &fate.Stayed)
		})
		record.Map(f, (*at).last, 3, maxThreads, func(thread *uint32, x *made) {
			record.Unsigned(f, thread)
			f.Uint(&x.addr, &x.stack)
		})
		if f.Reading() {
			t.n += len((*at).byStack)
		}
		f.Require(t.n <= 4*maxFates) // most are swept at twice those that call sites have
	})
}

func (t *freerTable) visit(f *record.Fields) {
	record.Map(f, t.processes, 3, maxProcesses, func(id *event.Process, at *map[Freer]Freed) {
		if f.Reading() {
			*at = map[Freer]Freed{}
		}
		f.Process(id)
		record.Map(f, *at, 5, maxFreed, func(by *Freer, x *Freed) {
			f.Uint(&by.Stack, &by.By)
			record.Signed(f, &by.Device)
			record.Signed(f, &x.Objects, &x.Bytes)
		})
		if f.Reading() {
			t.n += len(*at)
		}
		f.Require(t.n <= maxFreed)
	})
}
