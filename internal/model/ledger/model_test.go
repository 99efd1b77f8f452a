package ledger

import (
	"maps"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// model is the accounting rules written down with no thought of speed: it
// keeps every live thing in plain maps and slices, and adds all of them up
// again after each event. It knows no bounds.
type model struct {
	procs map[event.Process]*modelProc
	gone  map[event.Process]bool
	loss  map[string]uint64
}

type modelProc struct {
	proc               event.Process
	active, exited     bool
	exec, end          uint64
	allocs             map[modelAddr]*modelAlloc
	phys               map[uint64]*modelPhys
	maps               []*modelMap
	older              map[uint64]bool // contexts known and not seen created
	green              map[uint64]bool
	references         map[uint64]int
	numOlder           int // and those that ended since
	created            map[uint64]uint64
	ctxDevice          map[uint64]int32
	pools              map[poolKey]*modelPool
	defaults           map[uint64]poolKey     // by handle: pools that handle 0 names, too
	current            map[int32]uint64       // by device
	graphs             map[uint64]*modelGraph // by handle
	captures           []*modelCapture
	sites              []*modelSite
	failed, oom        int64
	unmatched          int64
	unknownN, unknownB int64
	unknownF           int64
	peak               [event.NumClasses]int64
	peakOf             map[*modelSite]int64
	allocated          int64 // device bytes
}

type modelAddr struct {
	space event.Space
	addr  uint64
}

type modelAlloc struct {
	size, time, ctx uint64
	pool            *poolKey
	graph           *modelGraph
	site            *modelSite
	more            int // references beyond the first
}

type modelPhys struct {
	size, time uint64
	refs       int
	site       *modelSite
}

// modelMap is a mapping of a range, or of a part of an array.
type modelMap struct {
	array            bool
	addr, end, index uint64 // a part has no end
	size, time       uint64
	phys             *modelPhys
}

type modelPool struct {
	high      int64
	destroyed bool
	kind      event.Kind // KindNone if no call showed its place
	device    int32
}

type modelSite struct {
	SiteKey
	detached                   bool
	objects, bytes             int64
	failedObjects, failedBytes int64
	inuseObjects, inuseBytes   int64 // of the last recount
}

func newModel() *model {
	return &model{
		procs: map[event.Process]*modelProc{},
		gone:  map[event.Process]bool{},
		loss:  map[string]uint64{},
	}
}

func (m *model) apply(e *event.Event) {
	if !modelValid(e) {
		m.loss["events_invalid"]++
		return
	}
	if m.procs[e.Proc] == nil {
		if m.gone[e.Proc] {
			m.loss["events_forgotten"]++
			return
		}
		m.procs[e.Proc] = &modelProc{
			proc: e.Proc, end: never,
			allocs: map[modelAddr]*modelAlloc{},
			phys:   map[uint64]*modelPhys{},
			older:  map[uint64]bool{}, green: map[uint64]bool{}, references: map[uint64]int{},
			created:   map[uint64]uint64{},
			ctxDevice: map[uint64]int32{},
			pools:     map[poolKey]*modelPool{}, defaults: map[uint64]poolKey{}, current: map[int32]uint64{},
			graphs: map[uint64]*modelGraph{},
			peakOf: map[*modelSite]int64{},
		}
	}
	p := m.procs[e.Proc]
	switch e.Op {
	case event.OpFork:
	case event.OpExec:
		if !p.exited && e.Time > p.exec {
			p.execAt(e.Time)
		}
	case event.OpExit:
		if !p.exited {
			p.exited, p.end = true, e.Time
		}
	default:
		m.call(p, e)
	}
	p.recount()
}

func modelValid(e *event.Event) bool {
	if e.Op < event.OpAlloc || e.Op > event.OpExit || e.Space >= event.NumSpaces {
		return false
	}
	switch e.Op {
	case event.OpAlloc, event.OpOpen, event.OpHandleCreate, event.OpHandleImport:
		if e.Kind == event.KindNone || e.Kind >= event.NumKinds {
			return false
		}
	}
	if e.Result != 0 || e.Op == event.OpPoolTrim {
		return true
	}
	if e.Size > 1<<57 {
		return false
	}
	switch e.Op {
	case event.OpMap, event.OpUnmap:
		return e.Size > 0 && e.Addr < e.Addr+e.Size
	case event.OpAlloc, event.OpOpen, event.OpHandleCreate, event.OpHandleImport:
		return e.Addr <= e.Addr+e.Size
	}
	return true
}

func (m *model) call(p *modelProc, e *event.Event) {
	p.active = true
	oldImage := e.Time <= p.exec
	if e.Result == 201 || e.Result == 709 {
		nowhere := *e
		nowhere.Ctx = 0
		e = &nowhere
	}
	if e.Ctx != 0 && !oldImage {
		p.useContext(e.Ctx)
	}
	brings, takes := false, false
	switch e.Op {
	case event.OpAlloc, event.OpOpen, event.OpHandleCreate, event.OpHandleImport:
		brings = true
	case event.OpFree, event.OpHandleRelease, event.OpUnmap, event.OpUnmapArray,
		event.OpContextDestroy, event.OpPrimaryReset:
		takes = true
	}
	switch {
	case e.Result != 0 && brings:
		s := p.site(e)
		s.failedObjects++
		s.failedBytes = addSaturated(s.failedBytes, e.Size)
		p.failed++
		if e.Result == 2 {
			p.oom++
		}
	case e.Op == event.OpCaptureEnd && e.Result != 0 && !oldImage && e.Time < p.end:
		m.captureEnd(p, e)
	case e.Result != 0:
	case brings && (oldImage || e.Time >= p.end):
		p.bring(p.site(e), 1, e.Size)
	case takes && e.Time >= p.end:
	case oldImage || e.Time >= p.end:
		m.loss["events_late"]++
	default:
		m.success(p, e)
	}
}

func (m *model) success(p *modelProc, e *event.Event) {
	switch e.Op {
	case event.OpAlloc:
		m.alloc(p, e)
	case event.OpFree:
		m.free(p, e)
	case event.OpOpen:
		old := p.allocs[modelAddr{event.SpacePointer, e.Addr}]
		if old == nil || old.site.Kind != event.KindImported {
			m.alloc(p, e)
			return
		}
		p.bring(p.site(e), 1, e.Size)
		old.more++
		old.time = min(old.time, e.Time)
	case event.OpHandleCreate:
		s := p.site(e)
		p.bring(s, 1, e.Size)
		if old := p.phys[e.Handle]; old != nil {
			m.loss["allocations_replaced"]++
			if old.time > e.Time {
				return
			}
		}
		m.newPhys(p, e, s)
	case event.OpHandleImport:
		s := p.site(e)
		p.bring(s, 1, e.Size)
		if old := p.phys[e.Handle]; old != nil {
			m.oneMore(old, e.Time)
		} else {
			m.newPhys(p, e, s)
		}
	case event.OpHandleRetain:
		if old := p.phys[e.Handle]; old != nil {
			m.oneMore(old, e.Time)
		} else {
			m.loss["handles_unmatched"]++
		}
	case event.OpHandleRelease:
		switch old := p.phys[e.Handle]; {
		case old == nil:
			m.loss["handles_unmatched"]++
		case old.time > e.Time:
			m.loss["frees_stale"]++
		case old.refs == 0:
			m.loss["releases_excess"]++
		default:
			old.refs--
		}
	case event.OpMap, event.OpMapArray:
		m.mapping(p, e)
	case event.OpUnmap, event.OpUnmapArray:
		m.unmapping(p, e)
	case event.OpCaptureBegin:
		m.captureBegin(p, e)
	case event.OpCaptureEnd:
		m.captureEnd(p, e)
	case event.OpGraphInstantiate, event.OpGraphMove, event.OpGraphDestroy:
		m.graphOp(p, e)
	case event.OpPoolCreate:
		p.createPool(e)
	case event.OpPoolDestroy:
		if _, ok := p.defaults[e.Handle]; ok {
			return
		}
		maps.DeleteFunc(p.current, func(_ int32, h uint64) bool { return h == e.Handle })
		if q := p.pools[p.poolKey(e.Handle)]; q != nil && e.Handle != 0 {
			q.destroyed = true
		}
	case event.OpPoolTrim:
		p.trim(e)
	case event.OpContextCreate:
		if e.Ctx == 0 {
			return
		}
		if e.Time > p.created[e.Ctx] {
			p.endAllocs(func(a *modelAlloc) bool {
				if a.time > e.Time || !modelInContext(a.site.Kind) || a.ctx != e.Ctx {
					return false
				}
				m.loss["allocations_replaced"]++
				return true
			})
			p.created[e.Ctx] = e.Time
		}
		if p.older[e.Ctx] {
			delete(p.older, e.Ctx)
			p.numOlder--
		}
		delete(p.green, e.Ctx)
		delete(p.references, e.Ctx)
		p.contextSeen(e)
	case event.OpContextSeen:
		if e.Ctx != 0 && e.Part == event.ContextAttached {
			p.references[e.Ctx]++
		}
		if e.Ctx != 0 && e.Part == event.ContextGreen && p.created[e.Ctx] == 0 {
			p.green[e.Ctx] = true
			if p.older[e.Ctx] {
				delete(p.older, e.Ctx)
				p.numOlder--
			}
		}
		p.contextSeen(e)
	case event.OpContextDestroy:
		if e.Ctx == 0 {
			return
		}
		if e.Part == event.ContextDetached {
			if p.references[e.Ctx] > 0 {
				p.references[e.Ctx]--
				return
			}
			if p.created[e.Ctx] == 0 {
				return
			}
		}
		alone := p.created[e.Ctx] == 0 && p.older[e.Ctx] && p.numOlder == 1
		if p.created[e.Ctx] == 0 && !alone && p.inUnknownContext() {
			m.loss["context_owner_unknown"]++
		}
		p.endAllocs(func(a *modelAlloc) bool {
			return a.time <= e.Time && modelInContext(a.site.Kind) &&
				(a.ctx == e.Ctx || a.ctx == 0 && alone)
		})
		if e.Time >= p.created[e.Ctx] {
			p.forgetContext(e.Ctx)
		}
	case event.OpPrimaryReset:
		if e.Device < 0 {
			m.loss["resets_unknown"]++
			return
		}
		undecided := false
		p.endAllocs(func(a *modelAlloc) bool {
			if a.time > e.Time || !modelInContext(a.site.Kind) || p.created[a.ctx] != 0 {
				return false
			}
			d := p.deviceOf(a)
			undecided = undecided || d < 0
			return d == e.Device
		})
		if undecided {
			m.loss["context_owner_unknown"]++
		}
	}
}

func modelInContext(k event.Kind) bool {
	return !slices.Contains([]event.Kind{event.KindAsync, event.KindAsyncHost, event.KindAsyncManaged, event.KindVMM, event.KindVMMHost, event.KindGraph}, k)
}

// deviceOf is where an allocation lives: its context's device, or what its
// site says, or where the only context is.
func (p *modelProc) deviceOf(a *modelAlloc) int32 {
	if d, ok := p.ctxDevice[a.ctx]; ok {
		return d
	}
	if a.site.Device >= 0 {
		return a.site.Device
	}
	if a.ctx == 0 && p.numOlder == 1 {
		for ctx := range p.older {
			if d, ok := p.ctxDevice[ctx]; ok {
				return d
			}
		}
	}
	return -1
}

func (p *modelProc) useContext(ctx uint64) {
	if p.created[ctx] == 0 && !p.older[ctx] && !p.green[ctx] {
		p.older[ctx] = true
		p.numOlder++
	}
}

func (p *modelProc) contextSeen(e *event.Event) {
	if e.Ctx == 0 || e.Device < 0 {
		return
	}
	for _, s := range p.sites {
		if s.Ctx == e.Ctx && s.Device < 0 && !s.detached {
			s.Ctx, s.Device, s.detached = 0, e.Device, true
		}
	}
	p.ctxDevice[e.Ctx] = e.Device
}

// inUnknownContext says whether there is memory in a context that is not known.
func (p *modelProc) inUnknownContext() bool {
	for _, a := range p.allocs {
		if a.ctx == 0 && modelInContext(a.site.Kind) {
			return true
		}
	}
	return false
}

func (p *modelProc) forgetContext(ctx uint64) {
	delete(p.ctxDevice, ctx)
	delete(p.created, ctx)
	delete(p.green, ctx)
	delete(p.references, ctx)
	delete(p.older, ctx)
	for _, s := range p.sites {
		if s.Ctx == ctx && ctx != 0 {
			s.detached = true
		}
	}
}

func (m *model) alloc(p *modelProc, e *event.Event) {
	if e.Addr == 0 && e.Size == 0 && e.Kind != event.KindImported {
		return
	}
	var graph *modelGraph
	if e.Kind == event.KindAsync {
		if graph = m.capturing(p, e); graph != nil {
			node := *e
			node.Kind, node.Handle = event.KindGraph, 0
			e = &node
		}
	}
	if q := p.pools[p.poolKey(e.Handle)]; e.Kind == event.KindAsync && e.Handle != 0 && q != nil && q.kind != event.KindNone && (q.kind != e.Kind || q.device != e.Device) {
		placed := *e
		placed.Kind, placed.Device, placed.Ctx = q.kind, q.device, 0
		e = &placed
	}
	s := p.site(e)
	p.bring(s, 1, e.Size)
	if e.Addr == 0 {
		m.loss["allocations_without_address"]++
		p.lose(e.Size)
		return
	}
	at := modelAddr{e.Space, e.Addr}
	if old := p.allocs[at]; old != nil {
		m.loss["allocations_replaced"]++
		if old.time > e.Time {
			return
		}
		delete(p.allocs, at)
		p.recountPools()
		p.pruneGraphs()
	}
	if e.Kind == event.KindGraph && graph == nil && e.Handle != 0 {
		graph = m.graph(p, e)
	}
	a := &modelAlloc{size: e.Size, time: e.Time, ctx: e.Ctx, site: s, graph: graph}
	if e.Kind.Async() {
		key := p.poolKey(e.Handle)
		if h := p.current[s.Device]; e.Handle == 0 && h != 0 {
			key = p.poolKey(h)
		} else if e.Handle == 0 {
			key.device = s.Device
		}
		if p.pools[key] == nil {
			p.pools[key] = &modelPool{}
		}
		a.pool = &key
	}
	p.allocs[at] = a
}

func (m *model) free(p *modelProc, e *event.Event) {
	if e.Addr == 0 {
		return
	}
	if e.Space == event.SpaceArray {
		p.maps = slices.DeleteFunc(p.maps, func(x *modelMap) bool {
			return x.array && x.addr == e.Addr && x.time <= e.Time
		})
	}
	at := modelAddr{e.Space, e.Addr}
	switch old := p.allocs[at]; {
	case old == nil && p.unknownF < p.unknownN:
		p.unknownF++
	case old == nil:
		p.unmatched++
	case old.time > e.Time:
		m.loss["frees_stale"]++
	case old.more > 0:
		old.more--
	default:
		delete(p.allocs, at)
	}
}

// poolKey returns the key of the pool that a handle names.
func (p *modelProc) poolKey(handle uint64) poolKey {
	if key, ok := p.defaults[handle]; ok {
		return key
	}
	return poolKey{handle: handle}
}

func (p *modelProc) createPool(e *event.Event) {
	if e.Handle == 0 {
		return
	}
	of := poolKey{device: e.Device}
	taken := false
	for _, key := range p.defaults {
		taken = taken || key == of
	}
	if e.Part == event.PoolDefault && !e.Kind.Async() && p.pools[p.poolKey(e.Handle)] == nil && !taken {
		p.defaults[e.Handle] = of
	}
	key := p.poolKey(e.Handle)
	q := p.pools[key]
	if q == nil {
		q = &modelPool{}
		p.pools[key] = q
	}
	if q.kind, q.device = e.Kind, e.Device; !q.kind.Async() {
		q.kind = event.KindAsync
	}
	if _, ok := p.defaults[e.Handle]; ok {
		q.kind, q.device = event.KindAsync, key.device
	}
	if e.Part == 0 {
		q.high, q.destroyed = 0, false // recount lifts high to what is in use
	}
	if e.Part == event.PoolCurrent && q.kind == event.KindAsync {
		p.current[e.Device] = e.Handle
	}
}

// dropPool forgets a pool without allocations.
func (p *modelProc) dropPool(key poolKey) {
	delete(p.pools, key)
	maps.DeleteFunc(p.current, func(_ int32, h uint64) bool { return p.poolKey(h) == key })
	maps.DeleteFunc(p.defaults, func(_ uint64, of poolKey) bool { return of == key })
}

func (p *modelProc) trim(e *event.Event) {
	q := p.pools[p.poolKey(e.Handle)]
	if e.Handle == 0 || q == nil {
		q = nil
		defaults := 0
		for key, pool := range p.pools {
			if key.handle == 0 {
				defaults++
				q = pool
			}
		}
		if defaults != 1 {
			return
		}
	}
	if uint64(q.high) > e.Size {
		q.high = int64(e.Size) // recount lifts it to what is in use
	}
}

func (p *modelProc) execAt(t uint64) {
	p.exec = t
	p.endAllocs(func(a *modelAlloc) bool { return a.time <= t })
	p.maps = slices.DeleteFunc(p.maps, func(x *modelMap) bool { return x.time <= t })
	maps.DeleteFunc(p.phys, func(_ uint64, ph *modelPhys) bool { return ph.time <= t })
	for _, s := range p.sites {
		p.forgetContext(s.Ctx)
	}
	clear(p.ctxDevice)
	clear(p.created)
	clear(p.older)
	clear(p.green)
	clear(p.references)
	p.numOlder = 0
	used := p.poolUse()
	for key := range p.pools {
		if used[key].objects == 0 {
			p.dropPool(key)
		}
	}
	clear(p.current)
	for key, q := range p.pools {
		q.high = used[key].bytes
	}
	p.captures = slices.DeleteFunc(p.captures, func(c *modelCapture) bool { return c.time <= t })
	p.unknownN, p.unknownB, p.unknownF = 0, 0, 0
}

func (p *modelProc) endAllocs(match func(*modelAlloc) bool) {
	maps.DeleteFunc(p.allocs, func(_ modelAddr, a *modelAlloc) bool { return match(a) })
}
