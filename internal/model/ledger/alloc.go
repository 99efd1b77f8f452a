package ledger

import "github.com/gpumemtrace/gpumemtrace/internal/model/event"

// A row is one live allocation, as a rowTable has it: without a pointer, so that the
// garbage collector need not look at millions of them.
type row struct {
	size, time uint64
	site       uint32 // index into siteTable.all
	ctx        uint32 // index into contextTable.all
	owner      uint32 // index into poolTable.all of async memory, graphTable.all of graph memory
}

// An allocTable has the allocations of one process that have an address.
type allocTable struct {
	p      *process
	live   [event.NumSpaces]rowTable
	extra  [event.NumSpaces]map[uint64]extraRow // beyond MaxLive
	opened map[uint64]uint32                    // references beyond the first, by address in SpacePointer

	unknownObjects int64 // live allocations without any row
	unknownFrees   int64 // frees that may have ended one of them
	unknownBytes   int64
	unmatchedFrees int64
}

func newAllocTable(p *process) allocTable {
	t := allocTable{p: p, opened: map[uint64]uint32{}}
	for space := range t.extra {
		t.extra[space] = map[uint64]extraRow{}
	}
	return t
}

func (t *allocTable) alloc(e *event.Event) {
	p := t.p
	if e.Addr == 0 && e.Size == 0 && e.Kind != event.KindImported {
		return // cudaMalloc gives a null pointer for no bytes, with success
	}
	var graph uint32
	if e.Kind == event.KindAsync && len(p.graphs.captures) > 0 {
		if g, ok := p.graphs.captured(e); ok {
			node := *e
			node.Kind, node.Handle, graph = event.KindGraph, 0, g
			e = &node
		}
	}
	e = p.pools.place(e)
	id, s := p.sites.find(e)
	w := one(e.Size)
	p.sites.count(s, e.Time, w.objects, uint64(w.bytes))
	if e.Addr == 0 {
		p.loss.Add(lossNoAddress, 1)
		t.addUnknown(e.Size)
		return
	}
	if old, ok := t.live[e.Space].get(e.Addr); ok {
		p.loss.Add(lossReplaced, 1)
		if old.time > e.Time {
			return // this one ended before the one that is there began
		}
		t.end(e.Space, e.Addr, &old)
	} else if old, ok := t.extra[e.Space][e.Addr]; ok {
		p.loss.Add(lossReplaced, 1)
		t.endExtra(e.Space, e.Addr, old)
	}
	ctx := ctxNone
	if inContext(e.Kind) {
		ctx = p.contexts.index(e.Ctx)
	}
	if e.Bare || !p.rowRoom() {
		t.addExtra(e, ctx)
		return
	}
	r := row{size: e.Size, time: e.Time, site: id, ctx: ctx}
	switch {
	case e.Kind.Async():
		r.owner = p.pools.index(p.pools.keyOf(e, s.Device))
		p.pools.add(r.owner, e.Kind, 1, int64(e.Size))
	case e.Kind == event.KindGraph:
		if r.owner = graph; graph == 0 && e.Handle != 0 {
			r.owner = p.graphs.index(e)
		}
		p.graphs.add(r.owner, 1)
	}
	t.live[e.Space].put(e.Addr, &r)
	p.contexts.all[ctx].live++
	p.addRows(1)
	p.sites.add(s, w)
	p.began(e.Space, e.Addr, e.Addr+e.Size, s)
}

// removeFromOwners takes a row of kind k out of its context, its pool and its graph.
func (t *allocTable) removeFromOwners(r *row, k event.Kind) {
	switch {
	case k.Async():
		t.p.pools.add(r.owner, k, -1, -int64(r.size))
	case k == event.KindGraph:
		t.p.graphs.add(r.owner, -1)
	}
	t.p.contexts.all[r.ctx].live--
}

// open applies OpOpen. cuIpcOpenMemHandle's documentation: a handle that is
// open in the context gives the pointer that it has, and one more reference.
func (t *allocTable) open(e *event.Event) {
	r, ok := t.live[event.SpacePointer].get(e.Addr)
	if ok = ok && t.p.sites.all[r.site].Kind == event.KindImported; ok && e.Time < r.time {
		r.time = e.Time // what came first was opened second
		t.live[event.SpacePointer].put(e.Addr, &r)
	}
	if x, beyond := t.extra[event.SpacePointer][e.Addr]; beyond {
		ok = x.kind() == event.KindImported
	}
	if !ok {
		t.alloc(e)
		return
	}
	_, s := t.p.sites.find(e)
	t.p.sites.count(s, e.Time, 1, e.Size)
	t.opened[e.Addr]++
}

// close removes one reference to what is at addr, and returns whether others are left.
func (t *allocTable) close(space event.Space, addr uint64) bool {
	n := t.opened[addr]
	if space != event.SpacePointer || n == 0 {
		return false
	}
	if n--; n == 0 {
		delete(t.opened, addr)
	} else {
		t.opened[addr] = n
	}
	return true
}

func (t *allocTable) free(e *event.Event) {
	if e.Addr == 0 {
		return // CUDA frees a null pointer with success
	}
	if e.Space == event.SpaceArray {
		t.p.vmm.endParts(e.Addr, e.Time)
	}
	if r, ok := t.live[e.Space].get(e.Addr); ok {
		if r.time > e.Time {
			t.p.loss.Add(lossStale, 1)
		} else if !t.close(e.Space, e.Addr) {
			t.end(e.Space, e.Addr, &r)
		}
		return
	}
	if r, ok := t.extra[e.Space][e.Addr]; ok {
		if !t.close(e.Space, e.Addr) {
			t.endExtra(e.Space, e.Addr, r)
		}
		return
	}
	if t.unknownFrees < t.unknownObjects {
		// It may be the end of an allocation that found no room.
		t.unknownFrees++
		return
	}
	t.unmatchedFrees++
}

// end ends the allocation that has the row r.
func (t *allocTable) end(space event.Space, addr uint64, r *row) {
	p, s := t.p, t.p.sites.all[r.site]
	t.live[space].remove(addr)
	t.removeReferences(space, addr)
	p.addRows(-1)
	p.sites.add(s, one(r.size).negative())
	t.removeFromOwners(r, s.Kind)
	p.ended(space, addr, addr+r.size)
}

func (t *allocTable) removeReferences(space event.Space, addr uint64) {
	if space == event.SpacePointer {
		delete(t.opened, addr)
	}
}

// endRows ends the live allocations not newer than at that match.
func (t *allocTable) endRows(at uint64, match func(*row) bool) {
	var r row // one for all: match makes it escape
	for space := range t.live {
		for addr, x := range t.live[space].all {
			if r = x; r.time <= at && match(&r) {
				t.end(event.Space(space), addr, &r)
			}
		}
	}
}

// addUnknown counts a live allocation without any row.
func (t *allocTable) addUnknown(bytes uint64) {
	t.unknownObjects++
	t.unknownBytes = addSaturated(t.unknownBytes, bytes)
}
