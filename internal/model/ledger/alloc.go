package ledger

import (
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// A row is one live allocation. It holds no pointer, so that the garbage
// collector need not look at millions of them.
type row struct {
	size, time uint64
	site       uint32 // index into process.sites
	ctx        uint32 // index into process.contexts
	owner      uint32 // index into process.pools of async memory, into process.graphs of graph memory
}

func (l *Ledger) alloc(p *process, e *event.Event) {
	if e.Addr == 0 && e.Size == 0 && e.Kind != event.KindImported {
		return // cudaMalloc gives a null pointer for no bytes, with success
	}
	var graph uint32
	if e.Kind == event.KindAsync && len(p.captures) > 0 {
		if g, ok := l.captured(p, e); ok {
			node := *e
			node.Kind, node.Handle, graph = event.KindGraph, 0, g
			e = &node
		}
	}
	id, s := l.site(p, e)
	w := l.weigh(e.Size)
	p.count(s, e.Time, w.Objects, uint64(w.Bytes))
	if e.Addr == 0 {
		l.loss.Add(lossNoAddress, 1)
		p.unknown(e.Size)
		return
	}
	if old, ok := p.live[e.Space][e.Addr]; ok {
		l.loss.Add(lossReplaced, 1)
		if old.time > e.Time {
			return // this one ended before the one that is there began
		}
		l.endRow(p, e.Space, e.Addr, &old)
	} else if old, ok := p.extra[e.Space][e.Addr]; ok {
		l.loss.Add(lossReplaced, 1)
		l.endExtraRow(p, e.Space, e.Addr, old)
	}
	ctx := ctxNone
	if inContext(e.Kind) {
		ctx = l.context(p, e.Ctx)
	}
	if !l.rowRoom(p) {
		l.addExtra(p, e, ctx)
		return
	}
	r := row{size: e.Size, time: e.Time, site: id, ctx: ctx}
	switch {
	case e.Kind == event.KindAsync:
		key := poolKey{handle: e.Handle}
		if e.Handle == 0 {
			key.device = s.Device
		}
		r.owner = l.poolOf(p, key)
		p.poolHold(r.owner, 1, int64(e.Size))
	case e.Kind == event.KindGraph:
		if r.owner = graph; graph == 0 && e.Handle != 0 {
			r.owner = l.graphOf(p, e)
		}
		p.graphHold(r.owner, 1)
	}
	p.live[e.Space][e.Addr] = r
	p.contexts[ctx].live++
	l.holdRow(p, s, 1, w)
	if l.opt.Changed != nil {
		l.changed(p.allocation(e.Space, e.Addr, &r), false)
	}
	l.began(p, e.Space, e.Addr, e.Addr+e.Size, s)
}

// open applies OpOpen. cuIpcOpenMemHandle's documentation: a handle that is
// open in the context gives the pointer that it has, and one more reference.
func (l *Ledger) open(p *process, e *event.Event) {
	r, ok := p.live[event.SpacePointer][e.Addr]
	if ok = ok && p.sites[r.site].Kind == event.KindImported; ok && e.Time < r.time {
		r.time = e.Time // what came first was opened second
		p.live[event.SpacePointer][e.Addr] = r
	}
	if x, beyond := p.extra[event.SpacePointer][e.Addr]; beyond {
		ok = x.kind() == event.KindImported
	}
	if !ok {
		l.alloc(p, e)
		return
	}
	_, s := l.site(p, e)
	p.count(s, e.Time, 1, e.Size)
	p.opened[e.Addr]++
}

// close takes one reference from what is at addr and says whether that was
// not the last.
func (p *process) close(space event.Space, addr uint64) bool {
	n := p.opened[addr]
	if space != event.SpacePointer || n == 0 {
		return false
	}
	if n--; n == 0 {
		delete(p.opened, addr)
	} else {
		p.opened[addr] = n
	}
	return true
}

func (p *process) forgetOpened(space event.Space, addr uint64) {
	if space == event.SpacePointer {
		delete(p.opened, addr)
	}
}

func (l *Ledger) free(p *process, e *event.Event) {
	if e.Addr == 0 {
		return // CUDA frees a null pointer with success
	}
	if e.Space == event.SpaceArray {
		l.endParts(p, e.Addr, e.Time)
	}
	if r, ok := p.live[e.Space][e.Addr]; ok {
		if r.time > e.Time {
			l.loss.Add(lossStale, 1)
		} else if !p.close(e.Space, e.Addr) {
			l.endRow(p, e.Space, e.Addr, &r)
		}
		return
	}
	if r, ok := p.extra[e.Space][e.Addr]; ok {
		if !p.close(e.Space, e.Addr) {
			l.endExtraRow(p, e.Space, e.Addr, r)
		}
		return
	}
	if p.unknownFrees < p.unknownObjects {
		// It may be the end of an allocation that found no room.
		p.unknownFrees++
		return
	}
	p.sums.UnmatchedFrees++
}

func (l *Ledger) endRow(p *process, space event.Space, addr uint64, r *row) {
	delete(p.live[space], addr)
	p.forgetOpened(space, addr)
	s := p.sites[r.site]
	l.holdRow(p, s, -1, l.weigh(r.size).negative())
	l.finished(p, space, addr, addr+r.size)
	switch s.Kind {
	case event.KindAsync:
		p.poolHold(r.owner, -1, -int64(r.size))
	case event.KindGraph:
		p.graphHold(r.owner, -1)
	}
	p.contexts[r.ctx].live--
	if l.opt.Changed != nil {
		l.opt.Changed(Change{p.allocation(space, addr, r), true})
	}
}

// endRows ends the live allocations not newer than t that match.
func (l *Ledger) endRows(p *process, t uint64, match func(*row) bool) {
	for space, rows := range p.live {
		for addr, r := range rows {
			if r.time <= t && match(&r) {
				l.endRow(p, event.Space(space), addr, &r)
			}
		}
	}
}

// unknown counts a live allocation of which nothing is kept.
func (p *process) unknown(bytes uint64) {
	p.unknownObjects++
	p.sums.UnknownBytes = addSaturated(p.sums.UnknownBytes, bytes)
}

// An extraRow is one live allocation beyond MaxLive: enough of it to keep the
// totals right at its end, in a third of a row's bytes. Its bytes count at its
// kind's synthetic site. It has no time, so a stale free that races with the
// reuse of its address is taken for its own.
//
// From bit 0: 5 bits of kind, 12 of context index, 47 of size.
type extraRow uint64

const (
	extraMaxKind    = 1<<5 - 1
	extraMaxContext = 1<<12 - 1
	extraMaxSize    = 1<<47 - 1
)

var _ [extraMaxKind + 1 - event.NumKinds]struct{} // each kind fits

func (r extraRow) kind() event.Kind { return event.Kind(r & extraMaxKind) }
func (r extraRow) ctx() uint32      { return uint32(r>>5) & extraMaxContext }
func (r extraRow) size() int64      { return int64(r >> 17) }

func extraOf(k event.Kind, ctx uint32, size uint64) extraRow {
	return extraRow(k) | extraRow(ctx)<<5 | extraRow(size)<<17
}

// addExtra keeps an allocation for which there is no row.
func (l *Ledger) addExtra(p *process, e *event.Event, ctx uint32) {
	p.shares[SharedRows].Lose(1)
	if e.Size > extraMaxSize || !p.shares[SharedExtra].Room(1) {
		l.loss.Add(lossUnknown, 1)
		p.shares[SharedExtra].Lose(1)
		p.unknown(e.Size)
		return
	}
	l.loss.Add(lossUnattributed, 1)
	r := extraOf(e.Kind, ctx, e.Size)
	p.extra[e.Space][e.Addr] = r
	p.contexts[ctx].live++
	if r.kind() == event.KindAsync {
		p.poolHold(0, 1, r.size())
	}
	l.holdExtra(p, r.kind(), 1, l.weigh(e.Size))
	if l.opt.Changed != nil {
		l.opt.Changed(Change{p.beyond(e.Space, e.Addr, r), false})
	}
}

// holdExtra changes what p has in use beyond MaxLive, by so many allocations.
func (l *Ledger) holdExtra(p *process, k event.Kind, n int, w Weight) {
	_, s := p.synthetic(k)
	p.shares[SharedExtra].Add(n)
	p.unattributed[k.Class()] += w.Bytes
	l.hold(p, s, w)
}

func (l *Ledger) endExtraRow(p *process, space event.Space, addr uint64, r extraRow) {
	delete(p.extra[space], addr)
	p.forgetOpened(space, addr)
	p.contexts[r.ctx()].live--
	l.finished(p, space, addr, addr+uint64(r.size())) // it may have had a row once
	if r.kind() == event.KindAsync {
		p.poolHold(0, -1, -r.size())
	}
	l.holdExtra(p, r.kind(), -1, l.weigh(uint64(r.size())).negative())
	if l.opt.Changed != nil {
		l.opt.Changed(Change{p.beyond(space, addr, r), true})
	}
}

// endExtra ends the live allocations beyond MaxLive that match.
func (l *Ledger) endExtra(p *process, match func(extraRow) bool) {
	for space, rows := range p.extra {
		for addr, r := range rows {
			if match(r) {
				l.endExtraRow(p, event.Space(space), addr, r)
			}
		}
	}
}
