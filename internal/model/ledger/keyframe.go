package ledger

import (
	"maps"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// Keyframe yields events that, applied in this order to a new Ledger of the
// same Options, rebuild what is live: that Ledger then shows the same live rows,
// the same bytes in use at each SiteKey and the same Holdings that are not
// empty, and further events change them as they would here. What is yielded is
// valid until yield returns. The events of one process follow each other and
// have the times of what they rebuild, so they are not in order of time. OpExec
// and OpExit have no Name.
//
// It is about memory, not about history. What was ever allocated, failed calls,
// unmatched frees, peaks, the highest use of pools and loss start afresh: each
// thing that is rebuilt counts as allocated once, each reference to opened
// memory too, and a mapping of memory never seen created is one more handle that
// was not matched. A process that ended, or was forgotten, is rebuilt as ended
// and holds nothing.
//
// Where a bound left something out, less is rebuilt: UnknownBytes are not; what
// is beyond MaxLive or without a site comes under no call stack, on its
// context's device, if that lives.
//
// A graph that only captures under way name is rebuilt as a new graph of each:
// it never ran, and has no memory nodes older than the capture, nor any whose
// site waits for the device of a context that ended. Those are rebuilt as nodes
// of no graph, which live until they are freed.
func (l *Ledger) Keyframe(yield func(*event.Event) bool) {
	k := keyframe{Emitter: Emitter{Yield: yield}}
	for _, id := range l.gone.queue {
		k.Emit(id, event.Event{Op: event.OpExit, Time: 1})
	}
	for _, q := range [][]*process{l.idle, l.ended} {
		for _, p := range q {
			k.Emit(p.id, event.Event{Op: event.OpExit, Time: p.end})
		}
	}
	for p := range l.inOrder {
		if !p.exited {
			k.process(p)
		}
	}
}

// An Emitter yields events until the receiver wants no more. An event is valid until
// Yield returns.
type Emitter struct {
	Yield func(*event.Event) bool
	Done  bool // the receiver wants no more
	e     event.Event
}

// Emit yields one event of a process, unless the receiver wants no more.
func (m *Emitter) Emit(id event.Process, e event.Event) {
	if m.Done {
		return
	}
	e.Proc = id
	m.e = e
	m.Done = !m.Yield(&m.e)
}

// A keyframe is a call of Keyframe in progress, at one process.
type keyframe struct {
	Emitter
	p       *process
	start   uint64          // the earliest time that belongs to p's image
	graphs  map[uint32]bool // graphs that are there again
	between uint64          // a stream that has no capture
}

func (k *keyframe) emit(e event.Event) { k.Emit(k.p.id, e) }

// A phase is when a row can be rebuilt.
type phase uint8

const (
	// phaseEarly is before its context ended, or the image before its own. The
	// row is newer than that end or outlives it, and is not of a later context that has
	// the same handle.
	phaseEarly phase = iota
	phasePlain
	phaseCaptured // while its capture goes on
)

func (k *keyframe) process(p *process) {
	k.p, k.start, k.graphs = p, p.exec+1, map[uint32]bool{}
	k.between = 0
	for slices.ContainsFunc(p.graphs.captures, func(c capture) bool { return c.stream == k.between }) {
		k.between++
	}
	over := p.endedContexts()
	if p.exec == 0 {
		for _, ctx := range over {
			k.emit(event.Event{Op: event.OpContextCreate, Time: k.start, Ctx: ctx, Device: event.NoDevice})
		}
	}
	if len(over) > 0 {
		k.rows(phaseEarly)
		k.handles(phaseEarly)
	}
	if p.exec != 0 {
		k.emit(event.Event{Op: event.OpExec, Time: p.exec}) // ends each of them
	} else {
		for _, ctx := range over {
			k.emit(event.Event{Op: event.OpContextDestroy, Time: k.start, Ctx: ctx})
		}
	}
	k.contexts()
	k.rows(phasePlain)
	k.handles(phasePlain)
	k.extra()
	k.mappings()
	k.pools()
	k.captures()
}

// endedContexts returns the handles of contexts that ended and that live
// allocations still name.
func (p *process) endedContexts() []uint64 {
	over := map[uint64]bool{}
	for handle, i := range p.contexts.at {
		if p.contexts.all[i].over() {
			over[handle] = true
		}
	}
	for i, s := range p.sites.all {
		if s != nil && s.InuseObjects > 0 && p.detached(uint32(i)) {
			over[s.Ctx] = true
		}
	}
	return slices.Collect(maps.Keys(over))
}

// over returns whether c ended, and is there only because newer allocations refer to it.
func (c *context) over() bool { return c.created == 0 && !c.older && !c.green }

// detached returns whether site i waited for the device of a context that ended.
func (p *process) detached(i uint32) bool {
	s := p.sites.all[i]
	if s.Ctx == 0 {
		return false
	}
	at, ok := p.sites.at[s.key()]
	return !ok || at != i
}

// contexts rebuilds p's contexts, and whether older ones than the trace ended.
func (k *keyframe) contexts() {
	p := k.p
	older := p.contexts.older
	for _, i := range p.contexts.at {
		if p.contexts.all[i].older {
			older--
		}
	}
	unused := uint64(1)
	for p.contexts.at[unused] != 0 {
		unused++
	}
	if older > 0 { // they ended, and how many did makes no difference
		k.emit(event.Event{Op: event.OpContextSeen, Time: k.start, Ctx: unused, Device: event.NoDevice})
		k.emit(event.Event{Op: event.OpContextDestroy, Time: k.start, Ctx: unused})
	}
	for handle, i := range p.contexts.at {
		switch c := &p.contexts.all[i]; {
		case c.created != 0:
			k.emit(event.Event{Op: event.OpContextCreate, Time: c.created, Ctx: handle, Device: c.device})
		case c.older:
			k.emit(event.Event{Op: event.OpContextSeen, Time: k.start, Ctx: handle, Device: c.device})
		case c.green:
			k.emit(event.Event{Op: event.OpContextSeen, Time: k.start, Ctx: handle, Device: c.device, Part: event.ContextGreen})
		}
		if c := &p.contexts.all[i]; c.references > 0 {
			k.emit(event.Event{Op: event.OpContextSeen, Time: max(k.start, c.created), Ctx: handle, Device: c.device, Part: event.ContextAttached, Size: uint64(c.references)})
		}
	}
}

// at is an event at the site i.
func (k *keyframe) at(i uint32, op event.Op, t uint64) event.Event {
	s := k.p.sites.all[i]
	return event.Event{
		Op: op, Time: t, Kind: s.Kind, API: s.API, Outer: s.Outer,
		Device: s.Device, Ctx: s.Ctx, Stack: s.Stack,
	}
}

// phaseOf returns when r can be rebuilt.
func (k *keyframe) phaseOf(r *row) phase {
	p := k.p
	if r.ctx > ctxNone && p.contexts.all[r.ctx].over() || p.detached(r.site) {
		return phaseEarly
	}
	if p.sites.all[r.site].Kind == event.KindGraph && p.captureOf(r) != nil {
		return phaseCaptured
	}
	return phasePlain
}

// captureOf returns the capture under way that r is a memory node of, if only
// that capture names its graph.
func (p *process) captureOf(r *row) *capture {
	if r.owner == 0 || p.graphs.all[r.owner].handle != 0 || p.graphs.all[r.owner].captures == 0 {
		return nil
	}
	i := slices.IndexFunc(p.graphs.captures, func(c capture) bool { return c.graph == r.owner })
	if p.graphs.captures[i].time > r.time {
		return nil
	}
	return &p.graphs.captures[i]
}

// rows rebuilds the allocations of one phase, with their references.
func (k *keyframe) rows(when phase) {
	for space := range k.p.allocs.live {
		for addr, r := range k.p.allocs.live[space].all {
			if k.Done {
				return
			}
			if k.phaseOf(&r) == when {
				k.row(event.Space(space), addr, &r)
			}
		}
	}
}

func (k *keyframe) row(space event.Space, addr uint64, r *row) {
	p := k.p
	e := k.at(r.site, event.OpAlloc, r.time)
	e.Space, e.Addr, e.Size = space, addr, r.size
	if e.Ctx == 0 {
		e.Ctx = p.contexts.all[r.ctx].handle
	}
	switch {
	case e.Kind.Async():
		e.Handle = p.pools.all[r.owner].key.handle
	case e.Kind == event.KindGraph:
		if k.phaseOf(r) == phaseCaptured {
			c := p.captureOf(r)
			e.Kind, e.Stream, e.TID = event.KindAsync, c.stream, c.by
		} else if r.owner != 0 {
			k.inGraph(r.owner, e)
			return
		}
	}
	k.emit(e)
	k.references(e)
}

// references rebuilds those to what e brought, beyond the first.
func (k *keyframe) references(e event.Event) {
	if e.Space != event.SpacePointer {
		return
	}
	e.Op = event.OpOpen
	for range k.p.allocs.opened[e.Addr] {
		k.emit(e)
	}
}

// inGraph yields e with graph i's handle. Before the first one for a graph it yields a
// capture that adds to that graph, so that its handle is as old as it was.
func (k *keyframe) inGraph(i uint32, e event.Event) {
	g := &k.p.graphs.all[i]
	e.Handle = g.handle
	if g.handle == 0 || k.graphs[i] {
		k.emit(e)
		return
	}
	k.graphs[i] = true
	k.emit(event.Event{Op: event.OpCaptureBegin, Time: max(g.time, k.start), Stream: k.between, Handle: g.handle})
	k.emit(e)
	k.emit(event.Event{Op: event.OpCaptureEnd, Time: max(g.time, k.start), Stream: k.between, Handle: g.handle})
}

// extra rebuilds what is beyond MaxLive, after all that has a row.
func (k *keyframe) extra() {
	p := k.p
	for space, rows := range p.allocs.extra {
		for addr, r := range rows {
			e := event.Event{
				Op: event.OpAlloc, Time: k.start, Kind: r.kind(), Space: event.Space(space), Addr: addr,
				Size: r.size(), Ctx: p.contexts.all[r.ctx()].handle, Device: event.NoDevice,
			}
			k.emit(e)
			k.references(e)
		}
	}
	for _, ph := range p.vmm.handles {
		if ph.extra {
			k.handle(ph)
		}
	}
}

// handles rebuilds the physical memory of one phase that has a row.
func (k *keyframe) handles(when phase) {
	for _, ph := range k.p.vmm.handles {
		if !ph.extra && (when == phaseEarly) == k.p.detached(ph.site) {
			k.handle(ph)
		}
	}
}

// handle rebuilds ph with its references, or with one if only mappings refer to it.
func (k *keyframe) handle(ph *physical) {
	e := k.at(ph.site, event.OpHandleCreate, ph.time)
	if e.Kind == event.KindImported {
		e.Op = event.OpHandleImport
	}
	e.Handle, e.Size = ph.handle, ph.size
	k.emit(e)
	for range ph.refs - 1 {
		k.emit(event.Event{Op: event.OpHandleRetain, Time: ph.time, Handle: ph.handle})
	}
}

// mappings rebuilds what shows physical memory, and then releases the memory that only
// mappings refer to.
func (k *keyframe) mappings() {
	p := k.p
	p.vmm.eachMapping(func(m *mapping) {
		k.emit(event.Event{Op: event.OpMap, Time: m.time, Addr: m.addr, Size: m.end - m.addr, Handle: m.ph.name()})
	})
	for array, parts := range p.vmm.parts {
		for index, x := range parts {
			k.emit(event.Event{Op: event.OpMapArray, Time: x.time, Addr: array, Part: index, Size: x.size, Handle: x.ph.name()})
		}
	}
	for _, ph := range p.vmm.handles {
		if ph.refs == 0 {
			k.emit(event.Event{Op: event.OpHandleRelease, Time: ph.time, Handle: ph.handle})
		}
	}
}

// name returns the handle of ph, or 0: it was never seen created, or its handle is another
// one's now.
func (ph *physical) name() uint64 {
	if ph == nil || ph.dead {
		return 0
	}
	return ph.handle
}

// pools rebuilds p's pools, after their allocations: some may be older than a pool's place.
func (k *keyframe) pools() {
	pools := &k.p.pools
	place := func(handle uint64, device int32, kind event.Kind, part uint64) {
		k.emit(event.Event{Op: event.OpPoolCreate, Time: k.start, Handle: handle, Device: device, Kind: kind, Part: part})
	}
	for key, i := range pools.at {
		if q := &pools.all[i]; key.handle != 0 && q.handle == key.handle {
			place(key.handle, q.key.device, event.KindNone, event.PoolDefault)
		}
	}
	for device, handle := range pools.current {
		place(handle, device, event.KindNone, event.PoolCurrent)
	}
	for key, i := range pools.at {
		q := &pools.all[i]
		if key.handle == 0 {
			continue
		}
		if q.kind != event.KindNone { // else its allocations name it
			place(key.handle, q.device, q.kind, 0)
		}
		if q.destroyed {
			k.emit(event.Event{Op: event.OpPoolDestroy, Time: k.start, Handle: key.handle})
		}
	}
}

// captures rebuilds the captures under way, what they allocated, and which
// graphs ran.
func (k *keyframe) captures() {
	p := k.p
	nodes := false
	for _, c := range p.graphs.captures {
		e := event.Event{Op: event.OpCaptureBegin, Time: c.time, Stream: c.stream, TID: c.by}
		k.inGraph(c.graph, e)
		nodes = nodes || c.graph != 0 && p.graphs.all[c.graph].handle == 0 && p.graphs.all[c.graph].live > 0
	}
	if nodes {
		k.rows(phaseCaptured)
	}
	for handle, i := range p.graphs.at {
		if p.graphs.all[i].ran {
			k.emit(event.Event{Op: event.OpGraphInstantiate, Time: k.start, Handle: handle})
		}
	}
}
