package ledger

import "github.com/gpumemtrace/gpumemtrace/internal/model/event"

// A physical is the memory behind a handle of the VMM API. cuMemRelease's
// documentation: it is freed when all references to the handle and all its
// mappings are gone. A handle keeps its value for as long as either is there
// (cuMemRetainAllocationHandle returns the value that was mapped).
type physical struct {
	handle     uint64
	size       uint64 // 0 for an import that was never mapped
	time       uint64
	site       uint32
	refs, maps int32
	dead       bool // retired while mappings of it remained
	extra      bool // beyond MaxLive: its bytes are at a synthetic site
	blind      bool // a mapping of it was not kept: its end will not be seen
}

func (l *Ledger) handleCreate(p *process, e *event.Event) {
	id, s := l.site(p, e)
	p.count(s, e.Time, 1, e.Size)
	if old := p.handles[e.Handle]; old != nil {
		l.loss.Add(lossReplaced, 1)
		if old.time > e.Time {
			return // this one ended before the one that is there began
		}
		l.endPhysical(p, old)
	}
	l.addPhysical(p, e, id)
}

func (l *Ledger) handleImport(p *process, e *event.Event) {
	id, s := l.site(p, e)
	p.count(s, e.Time, 1, e.Size)
	if ph := p.handles[e.Handle]; ph != nil {
		l.retain(ph, e.Time)
		return
	}
	l.addPhysical(p, e, id)
}

// addPhysical makes e's memory live with one reference.
func (l *Ledger) addPhysical(p *process, e *event.Event, site uint32) {
	if e.Handle == 0 {
		l.loss.Add(lossNoAddress, 1)
		p.unknown(e.Size)
		return
	}
	ph := &physical{handle: e.Handle, size: e.Size, time: e.Time, site: site, refs: 1}
	if !l.rowRoom(p) {
		p.shares[SharedRows].Lose(1)
		if !p.shares[SharedExtra].Room(1) {
			l.loss.Add(lossUnknown, 1)
			p.shares[SharedExtra].Lose(1)
			p.unknown(e.Size)
			return
		}
		l.loss.Add(lossUnattributed, 1)
		ph.extra = true
		ph.site, _ = p.synthetic(e.Kind)
	}
	p.handles[e.Handle] = ph
	l.holdPhysical(p, ph, 1, int64(ph.size))
}

// holdPhysical changes what p has in use by physical memory.
func (l *Ledger) holdPhysical(p *process, ph *physical, objects int, bytes int64) {
	s := p.sites[ph.site]
	if w := (Weight{int64(objects), bytes}); ph.extra {
		l.holdExtra(p, s.Kind, objects, w)
	} else {
		l.holdRow(p, s, objects, w)
	}
	if l.opt.Changed != nil {
		l.opt.Changed(Change{p.allocated(ph), objects < 0})
	}
}

// endPhysical ends ph, whatever references and mappings it has.
func (l *Ledger) endPhysical(p *process, ph *physical) {
	delete(p.handles, ph.handle)
	ph.dead = true
	l.holdPhysical(p, ph, -1, -int64(ph.size))
	if ph.blind {
		p.unknown(ph.size) // the mapping that found no room may keep it alive
	}
}

// settlePhysical ends ph if nothing keeps it.
func (l *Ledger) settlePhysical(p *process, ph *physical) {
	if !ph.dead && ph.refs == 0 && ph.maps == 0 {
		l.endPhysical(p, ph)
	}
}

func (l *Ledger) handleRetain(p *process, e *event.Event) {
	if ph := p.handles[e.Handle]; ph != nil {
		l.retain(ph, e.Time)
		return
	}
	l.loss.Add(lossHandles, 1)
}

func (l *Ledger) retain(ph *physical, t uint64) {
	if ph.time > t {
		l.loss.Add(lossStale, 1) // a reference to the handle's earlier memory
		return
	}
	ph.refs++
}

func (l *Ledger) handleRelease(p *process, e *event.Event) {
	ph := p.handles[e.Handle]
	switch {
	case ph == nil:
		l.loss.Add(lossHandles, 1)
	case ph.time > e.Time:
		l.loss.Add(lossStale, 1)
	case ph.refs == 0:
		l.loss.Add(lossReleases, 1)
	default:
		ph.refs--
		l.settlePhysical(p, ph)
	}
}

// shown returns what a mapping of handle at time t shows: nil for memory that
// was never seen created. ok is false when the mapping is not to be kept.
func (l *Ledger) shown(p *process, handle, t uint64) (ph *physical, ok bool) {
	ph = p.handles[handle]
	if ph == nil {
		l.loss.Add(lossHandles, 1)
	} else if ph.time > t {
		l.loss.Add(lossStale, 1) // a mapping of the handle's earlier memory
		return nil, false
	}
	return ph, true
}

// learnSize gives an import the size that its first mapping shows. A multicast
// object has none of its own: what it shows is memory that is bound to it.
func (l *Ledger) learnSize(p *process, ph *physical, size uint64) {
	if ph == nil || ph.size != 0 || size == 0 || p.sites[ph.site].Kind == event.KindMulticast {
		return
	}
	ph.size = size
	p.count(p.sites[ph.site], ph.time, 0, size)
	l.holdPhysical(p, ph, 0, int64(size))
}

// addMapping counts a mapping of size bytes of ph and says whether there is
// room to keep it.
func (l *Ledger) addMapping(p *process, ph *physical, size uint64) bool {
	if !p.shares[SharedMappings].Room(1) {
		l.loss.Add(lossMappings, 1)
		p.shares[SharedMappings].Lose(1)
		ph.unseen()
		return false
	}
	p.shares[SharedMappings].Add(1)
	if ph != nil {
		ph.maps++
	}
	return true
}

func (l *Ledger) endMapping(p *process, ph *physical, size uint64) {
	p.shares[SharedMappings].Add(-1)
	if ph != nil {
		ph.maps--
		l.settlePhysical(p, ph)
	}
}

// endHandles ends p's mappings and physical memory not newer than t.
func (l *Ledger) endHandles(p *process, t uint64) {
	l.hits = l.hits[:0]
	if p.ranges != nil {
		p.ranges.Ascend(func(m *mapping) bool {
			if m.time <= t {
				l.hits = append(l.hits, m)
			}
			return true
		})
	}
	l.endRanges(p)
	for array := range p.parts {
		l.endParts(p, array, t)
	}
	for _, ph := range p.handles {
		if ph.time <= t {
			l.endPhysical(p, ph)
		}
	}
}
