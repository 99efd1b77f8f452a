package ledger

import (
	"github.com/google/btree"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// A mapping is an address range [addr, end) that shows physical memory.
type mapping struct {
	addr, end uint64
	time      uint64
	ph        *physical // nil for memory that was never seen created
}

// A part is one part of a sparse array that shows physical memory.
type part struct {
	size, time uint64
	ph         *physical
}

// intersecting sets l.hits to p's mappings that share an address with
// [addr, end).
func (l *Ledger) intersecting(p *process, addr, end uint64) []*mapping {
	l.hits = l.hits[:0]
	if p.ranges == nil {
		return nil
	}
	l.from.addr, l.to.addr = addr, end
	p.ranges.DescendLessOrEqual(&l.from, func(m *mapping) bool {
		if m.addr < addr && m.end > addr {
			l.hits = append(l.hits, m)
		}
		return m.addr == addr
	})
	p.ranges.AscendRange(&l.from, &l.to, func(m *mapping) bool {
		l.hits = append(l.hits, m)
		return true
	})
	return l.hits
}

func (l *Ledger) endRanges(p *process) {
	for _, m := range l.hits {
		p.ranges.Delete(m)
		l.finished(p, event.SpacePointer, m.addr, m.end)
		l.endMapping(p, m.ph, m.end-m.addr)
	}
	if cap(l.hits) > 4096 {
		l.hits = nil // one large unmap must not keep its scratch
	}
}

// mapRange applies OpMap. CUDA maps nothing over a mapping: one that is there
// ended without our seeing it.
func (l *Ledger) mapRange(p *process, e *event.Event) {
	ph, ok := l.shown(p, e.Handle, e.Time)
	if !ok {
		return
	}
	end := e.Addr + e.Size
	hits := l.intersecting(p, e.Addr, end)
	l.loss.Add(lossReplaced, uint64(len(hits)))
	older := hits[:0]
	for _, m := range hits {
		if m.time <= e.Time {
			older = append(older, m)
		}
	}
	overtaken := len(older) < len(hits)
	l.hits = older
	if overtaken {
		l.endRanges(p)
		return // it ended before the newer one that is there began
	}
	// The new mapping goes first: what it shows may be kept by nothing else.
	keep := l.addMapping(p, ph, e.Size)
	l.endRanges(p)
	l.learnSize(p, ph, e.Size)
	if !keep {
		return
	}
	if p.ranges == nil {
		p.ranges = btree.NewG(16, func(a, b *mapping) bool { return a.addr < b.addr })
	}
	p.ranges.ReplaceOrInsert(&mapping{addr: e.Addr, end: end, time: e.Time, ph: ph})
	if ph != nil {
		l.began(p, event.SpacePointer, e.Addr, end, p.sites[ph.site])
	}
}

// unmapRange applies OpUnmap. CUDA refuses to unmap a part of a mapping.
func (l *Ledger) unmapRange(p *process, e *event.Event) {
	end := e.Addr + e.Size
	hits := l.intersecting(p, e.Addr, end)
	if len(hits) == 0 {
		l.loss.Add(lossUnmaps, 1)
		return
	}
	ended := hits[:0]
	for _, m := range hits {
		switch {
		case m.time > e.Time:
			l.loss.Add(lossStale, 1)
		case m.addr < e.Addr || m.end > end:
			l.loss.Add(lossPartial, 1)
		default:
			ended = append(ended, m)
		}
	}
	l.hits = ended
	l.endRanges(p)
}

func (l *Ledger) mapPart(p *process, e *event.Event) {
	ph, ok := l.shown(p, e.Handle, e.Time)
	if !ok {
		return
	}
	old, had := p.parts[e.Addr][e.Part]
	if had {
		l.loss.Add(lossReplaced, 1)
		if old.time > e.Time {
			return
		}
	}
	keep := l.addMapping(p, ph, e.Size)
	if had {
		l.endPart(p, e.Addr, e.Part, old)
	}
	l.learnSize(p, ph, e.Size)
	if !keep {
		return
	}
	if p.parts[e.Addr] == nil {
		p.parts[e.Addr] = make(map[uint64]part)
	}
	p.parts[e.Addr][e.Part] = part{size: e.Size, time: e.Time, ph: ph}
}

func (l *Ledger) unmapPart(p *process, e *event.Event) {
	old, ok := p.parts[e.Addr][e.Part]
	switch {
	case !ok:
		l.loss.Add(lossUnmaps, 1)
	case old.time > e.Time:
		l.loss.Add(lossStale, 1)
	default:
		l.endPart(p, e.Addr, e.Part, old)
	}
}

func (l *Ledger) endPart(p *process, array, index uint64, old part) {
	delete(p.parts[array], index)
	if len(p.parts[array]) == 0 {
		delete(p.parts, array)
	}
	l.endMapping(p, old.ph, old.size)
}

// endParts ends the parts of array not newer than t: they go with it.
func (l *Ledger) endParts(p *process, array, t uint64) {
	for index, old := range p.parts[array] {
		if old.time <= t {
			l.endPart(p, array, index, old)
		}
	}
}
