package ledger

import (
	"github.com/google/btree"

	"github.com/gpumemtrace/gpumemtrace/internal/keyed"
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

// eachMapping calls f for each mapping, by address.
func (t *vmmTable) eachMapping(f func(*mapping)) {
	if t.mappings != nil {
		t.mappings.Ascend(func(m *mapping) bool {
			f(m)
			return true
		})
	}
}

// intersecting sets t.hits to the mappings that share an address with [addr, end).
func (t *vmmTable) intersecting(addr, end uint64) []*mapping {
	t.hits = t.hits[:0]
	if t.mappings == nil {
		return nil
	}
	t.from.addr, t.to.addr = addr, end
	t.mappings.DescendLessOrEqual(&t.from, func(m *mapping) bool {
		if m.addr < addr && m.end > addr {
			t.hits = append(t.hits, m)
		}
		return m.addr == addr
	})
	t.mappings.AscendRange(&t.from, &t.to, func(m *mapping) bool {
		t.hits = append(t.hits, m)
		return true
	})
	return t.hits
}

// endMappings ends the mappings in t.hits.
func (t *vmmTable) endMappings() {
	for _, m := range t.hits {
		if _, there := t.mappings.Delete(m); !there {
			continue // it made room for a newer one
		}
		t.p.ended(event.SpacePointer, m.addr, m.end)
		t.unshow(m.ph)
	}
	if cap(t.hits) > 256 {
		t.hits = nil // one large unmap must not keep its scratch
	}
}

// mapped returns the memory that a mapping of handle at time at shows: nil for memory that
// was never seen created. ok is false for a mapping that is too old to count.
func (t *vmmTable) mapped(handle, at uint64) (ph *physical, ok bool) {
	ph = t.handles[handle]
	if ph == nil {
		t.p.loss.Add(lossHandles, 1)
	} else if ph.time > at {
		t.p.loss.Add(lossStale, 1) // a mapping of the handle's earlier memory
		return nil, false
	}
	return ph, true
}

// show counts e's mapping of ph, and returns whether there is room for it.
func (t *vmmTable) show(e *event.Event, ph *physical) bool {
	if e.Shut || t.p.l.full(Mappings) {
		t.p.loss.Add(lossMappings, 1)
		ph.markBlind()
		return false
	}
	t.p.count(Mappings, 1)
	if ph != nil {
		ph.maps++
	}
	return true
}

// unshow counts the end of a mapping of ph.
func (t *vmmTable) unshow(ph *physical) {
	t.p.count(Mappings, -1)
	if ph != nil {
		ph.maps--
		t.endUnused(ph)
	}
}

// markBlind notes that the end of a mapping of ph will not be seen.
func (ph *physical) markBlind() {
	if ph != nil {
		ph.blind = true
	}
}

// mapRange applies OpMap. CUDA maps nothing over a mapping: one that is there
// ended without being seen.
func (t *vmmTable) mapRange(e *event.Event) {
	ph, ok := t.mapped(e.Handle, e.Time)
	if !ok {
		return
	}
	end := e.Addr + e.Size
	hits := t.intersecting(e.Addr, end)
	t.p.loss.Add(lossReplaced, uint64(len(hits)))
	older := hits[:0]
	for _, m := range hits {
		if m.time <= e.Time {
			older = append(older, m)
		}
	}
	overtaken := len(older) < len(hits)
	t.hits = older
	if overtaken {
		t.endMappings()
		return // it ended before the newer one that is there began
	}
	// The new mapping goes first: it may be all that keeps the memory alive.
	room := t.show(e, ph)
	t.endMappings()
	t.learnSize(ph, e.Size)
	if !room {
		return
	}
	t.insert(&mapping{addr: e.Addr, end: end, time: e.Time, ph: ph})
	if ph != nil {
		t.p.began(event.SpacePointer, e.Addr, end, t.p.sites.all[ph.site])
	}
}

// insert adds a mapping, and returns the one that it replaces, nil for none.
func (t *vmmTable) insert(m *mapping) (old *mapping) {
	if t.mappings == nil {
		t.mappings = btree.NewG(16, func(a, b *mapping) bool { return a.addr < b.addr })
	}
	old, _ = t.mappings.ReplaceOrInsert(m)
	return old
}

// unmapRange applies OpUnmap. CUDA refuses to unmap a part of a mapping.
func (t *vmmTable) unmapRange(e *event.Event) {
	end := e.Addr + e.Size
	hits := t.intersecting(e.Addr, end)
	if len(hits) == 0 {
		t.p.loss.Add(lossUnmaps, 1)
		return
	}
	ended := hits[:0]
	for _, m := range hits {
		switch {
		case m.time > e.Time:
			t.p.loss.Add(lossStale, 1)
		case m.addr < e.Addr || m.end > end:
			t.p.loss.Add(lossPartial, 1)
		default:
			ended = append(ended, m)
		}
	}
	t.hits = ended
	t.endMappings()
}

func (t *vmmTable) mapPart(e *event.Event) {
	ph, ok := t.mapped(e.Handle, e.Time)
	if !ok {
		return
	}
	old, had := t.parts[e.Addr][e.Part]
	if had {
		t.p.loss.Add(lossReplaced, 1)
		if old.time > e.Time {
			return
		}
	}
	room := t.show(e, ph)
	if had {
		t.endPart(e.Addr, e.Part, old)
	}
	t.learnSize(ph, e.Size)
	if !room {
		return
	}
	t.setPart(e.Addr, e.Part, part{size: e.Size, time: e.Time, ph: ph})
}

func (t *vmmTable) setPart(array, index uint64, x part) {
	keyed.Map(t.parts, array)[index] = x
}

func (t *vmmTable) unmapPart(e *event.Event) {
	old, ok := t.parts[e.Addr][e.Part]
	switch {
	case !ok:
		t.p.loss.Add(lossUnmaps, 1)
	case old.time > e.Time:
		t.p.loss.Add(lossStale, 1)
	default:
		t.endPart(e.Addr, e.Part, old)
	}
}

func (t *vmmTable) endPart(array, index uint64, old part) {
	delete(t.parts[array], index)
	if len(t.parts[array]) == 0 {
		delete(t.parts, array)
	}
	t.unshow(old.ph)
}

// endParts ends the parts of array not newer than at: they go with it.
func (t *vmmTable) endParts(array, at uint64) {
	for index, old := range t.parts[array] {
		if old.time <= at {
			t.endPart(array, index, old)
		}
	}
}
