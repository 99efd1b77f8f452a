package ledger

import (
	"github.com/google/btree"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

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
	blind      bool // the end of a mapping of it will not be seen
}

// A vmmTable has the physical memory of one process, and the mappings that show it.
type vmmTable struct {
	p        *process
	handles  map[uint64]*physical
	mappings *btree.BTreeG[*mapping]    // by address, never overlapping; nil before the first
	parts    map[uint64]map[uint64]part // by array and part: what it shows

	// Scratch of the mapping code.
	hits     []*mapping
	from, to mapping
}

func newVMMTable(p *process) vmmTable {
	return vmmTable{p: p, handles: map[uint64]*physical{}, parts: map[uint64]map[uint64]part{}}
}

func (t *vmmTable) create(e *event.Event) {
	id, s := t.p.sites.find(e)
	t.p.sites.count(s, e.Time, 1, e.Size)
	if old := t.handles[e.Handle]; old != nil {
		t.p.loss.Add(lossReplaced, 1)
		if old.time > e.Time {
			return // this one ended before the one that is there began
		}
		t.end(old)
	}
	t.begin(e, id)
}

func (t *vmmTable) importHandle(e *event.Event) {
	id, s := t.p.sites.find(e)
	t.p.sites.count(s, e.Time, 1, e.Size)
	if t.handles[e.Handle] != nil {
		t.retain(e)
		return
	}
	t.begin(e, id)
}

// begin makes e's memory live with one reference.
func (t *vmmTable) begin(e *event.Event, site uint32) {
	p := t.p
	if e.Handle == 0 {
		p.loss.Add(lossNoAddress, 1)
		p.allocs.addUnknown(e.Size)
		return
	}
	ph := &physical{handle: e.Handle, size: e.Size, time: e.Time, site: site, refs: 1}
	if e.Bare || !p.rowRoom() {
		if !p.extraRoom(e, 0) { // it has room for any size
			p.allocs.addUnknown(e.Size)
			return
		}
		ph.extra = true
		ph.site, _ = p.sites.synthetic(e.Kind)
	}
	t.handles[e.Handle] = ph
	t.add(ph, 1, int64(ph.size))
}

// add changes what the process has in use by physical memory.
func (t *vmmTable) add(ph *physical, objects int, bytes int64) {
	p, s, w := t.p, t.p.sites.all[ph.site], tally{int64(objects), bytes}
	if ph.extra {
		p.addExtra(s.Kind, objects, w)
	} else {
		p.addRows(objects)
		p.sites.add(s, w)
	}
}

func (ph *physical) item() item {
	return item{event.NumSpaces, ph.handle, row{size: ph.size, time: ph.time, site: ph.site}, ph}
}

// end ends ph, whatever references and mappings it has.
func (t *vmmTable) end(ph *physical) {
	delete(t.handles, ph.handle)
	ph.dead = true
	t.add(ph, -1, -int64(ph.size))
	if ph.blind {
		t.p.allocs.addUnknown(ph.size) // the mapping that found no room may keep it alive
	}
}

// endUnused ends ph if neither references nor mappings are left.
func (t *vmmTable) endUnused(ph *physical) {
	if !ph.dead && ph.refs == 0 && ph.maps == 0 {
		t.end(ph)
	}
}

func (t *vmmTable) retain(e *event.Event) {
	switch ph := t.handles[e.Handle]; {
	case ph == nil:
		t.p.loss.Add(lossHandles, 1)
	case ph.time > e.Time:
		t.p.loss.Add(lossStale, 1) // a reference to the handle's earlier memory
	default:
		ph.refs++
	}
}

func (t *vmmTable) releaseHandle(e *event.Event) {
	ph := t.handles[e.Handle]
	switch {
	case ph == nil:
		t.p.loss.Add(lossHandles, 1)
	case ph.time > e.Time:
		t.p.loss.Add(lossStale, 1)
	case ph.refs == 0:
		t.p.loss.Add(lossReleases, 1)
	default:
		ph.refs--
		t.endUnused(ph)
	}
}

// learnSize gives an import the size that its first mapping shows. A multicast
// object has none of its own: what it shows is memory that is bound to it.
func (t *vmmTable) learnSize(ph *physical, size uint64) {
	if ph == nil || ph.size != 0 || size == 0 || t.p.sites.all[ph.site].Kind == event.KindMulticast {
		return
	}
	ph.size = size
	t.p.sites.count(t.p.sites.all[ph.site], ph.time, 0, size)
	t.add(ph, 0, int64(size))
}

// reset ends the mappings and the physical memory that are not newer than at.
func (t *vmmTable) reset(at uint64) {
	t.hits = t.hits[:0]
	t.eachMapping(func(m *mapping) {
		if m.time <= at {
			t.hits = append(t.hits, m)
		}
	})
	t.endMappings()
	for array := range t.parts {
		t.endParts(array, at)
	}
	for _, ph := range t.handles {
		if ph.time <= at {
			t.end(ph)
		}
	}
}
