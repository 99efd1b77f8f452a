package ledger

import "github.com/gpumemtrace/gpumemtrace/internal/event"

// maxContexts bounds the contexts of one process, so that an extraRow can
// name each. Memory of a context beyond them is memory of a context that is
// not known.
const maxContexts = extraMaxContext

// The first two entries of process.contexts.
const (
	ctxUnknown uint32 = iota // memory of a context that is not known
	ctxNone                  // memory that belongs to no context
)

// A context is one CUcontext of a process.
type context struct {
	handle     uint64
	device     int32
	live       int      // allocations in it
	unresolved []uint32 // sites that wait for its device
}

// inContext says whether memory of kind k belongs to a context and ends with
// it. CUDA's documentation of cuCtxDestroy names cuMemAlloc, cuMemAllocHost,
// cuMemAllocManaged, cuMemAllocPitch, CUarray and CUexternalMemory as ended;
// and cuMemCreate, cuMemAllocAsync and cuMemAllocFromPoolAsync as associated
// with no context. It does not name cuMemHostRegister: page-locking is the
// context's, as with cuMemAllocHost. Graph memory comes from a device's pool.
func inContext(k event.Kind) bool {
	switch k {
	case event.KindAsync, event.KindVMM, event.KindVMMHost, event.KindGraph:
		return false
	}
	return true
}

// contextOf returns the index of the context that e's allocation ends with.
func (l *Ledger) contextOf(p *process, e *event.Event) uint32 {
	if !inContext(e.Kind) {
		return ctxNone
	}
	return l.context(p, e.Ctx)
}

// context returns the index of the context handle, which is ctxUnknown for 0
// and when there are too many.
func (l *Ledger) context(p *process, handle uint64) uint32 {
	if handle == 0 {
		return ctxUnknown
	}
	if handle == p.lastCtx {
		return p.lastCtxIndex
	}
	if p.firstCtx == 0 {
		p.firstCtx = handle
	} else if p.firstCtx != handle {
		p.manyCtx = true
	}
	i, ok := p.contextAt[handle]
	if !ok {
		if i, ok = p.newContext(handle); !ok {
			l.loss[lossContexts]++
			return ctxUnknown
		}
	}
	p.lastCtx, p.lastCtxIndex = handle, i
	return i
}

// newContext gives handle a place, if there is one.
func (p *process) newContext(handle uint64) (i uint32, ok bool) {
	switch n := len(p.freeContext); {
	case n > 0:
		i = p.freeContext[n-1]
		p.freeContext = p.freeContext[:n-1]
	case len(p.contexts) <= maxContexts:
		i = uint32(len(p.contexts))
		p.contexts = append(p.contexts, context{})
	default:
		return ctxUnknown, false
	}
	p.contexts[i] = context{handle: handle, device: event.NoDevice}
	if p.contextAt == nil {
		p.contextAt = make(map[uint64]uint32)
	}
	p.contextAt[handle] = i
	return i, true
}

// removeContext gives the place i back.
func (p *process) removeContext(i uint32) {
	delete(p.contextAt, p.contexts[i].handle)
	p.freeContext = append(p.freeContext, i)
	if p.lastCtxIndex == i {
		p.lastCtx = 0
	}
}

// contextSeen applies OpContextSeen: sites that waited for the device get it.
func (l *Ledger) contextSeen(p *process, e *event.Event) {
	i := l.context(p, e.Ctx)
	if i == ctxUnknown || e.Device <= event.NoDevice {
		return
	}
	c := &p.contexts[i]
	for _, id := range p.detach(c) {
		p.sites[id].Device = e.Device
		p.sites[id].Ctx = 0
	}
	c.device = e.Device
}

// detach returns the sites that wait for c's device, and lets no further
// allocation find them: c's handle may soon mean another device.
func (p *process) detach(c *context) []uint32 {
	ids := c.unresolved
	for _, id := range ids {
		delete(p.siteAt, p.sites[id].key())
	}
	c.unresolved = nil
	return ids
}

// contextDestroy applies OpContextDestroy. Allocations of no known context
// are its own when the process has known no other one.
func (l *Ledger) contextDestroy(p *process, e *event.Event) {
	i := l.context(p, e.Ctx)
	if i == ctxUnknown {
		return
	}
	c := &p.contexts[i]
	c.device = event.NoDevice
	p.detach(c)
	alone := !p.manyCtx
	if c.live > 0 || alone && p.contexts[ctxUnknown].live > 0 {
		l.endIn(p, e.Time, func(ctx uint32, _ int32) bool {
			return ctx == i || ctx == ctxUnknown && alone
		})
	}
	if c.live == 0 { // newer ones belong to a context that reuses the handle
		p.removeContext(i)
	}
}

// primaryReset applies OpPrimaryReset. Which of a device's contexts is the
// primary one is not known: all of them end, as a process that uses the
// primary one rarely has another.
func (l *Ledger) primaryReset(p *process, e *event.Event) {
	if e.Device <= event.NoDevice {
		l.loss[lossReset]++
		return
	}
	alone := event.NoDevice
	if !p.manyCtx {
		alone = p.contexts[p.contextAt[p.firstCtx]].device
	}
	l.endIn(p, e.Time, func(ctx uint32, device int32) bool {
		if d := p.contexts[ctx].device; d != event.NoDevice {
			device = d
		} else if device == event.NoDevice && ctx == ctxUnknown {
			device = alone
		}
		return device == e.Device
	})
}

// endIn ends the allocations not newer than t that belong to contexts and
// match: ctx is an index into p.contexts, device what the site says.
func (l *Ledger) endIn(p *process, t uint64, match func(ctx uint32, device int32) bool) {
	l.endRows(p, t, func(r *row) bool {
		return r.ctx != ctxNone && match(r.ctx, p.sites[r.site].Device)
	})
	l.endExtra(p, func(r extraRow) bool {
		return r.ctx() != ctxNone && match(r.ctx(), event.NoDevice)
	})
}

// resetContexts forgets p's contexts, but for what newer allocations use.
func (p *process) resetContexts() {
	p.firstCtx, p.manyCtx, p.lastCtx = 0, false, 0
	for _, i := range p.contextAt {
		c := &p.contexts[i]
		c.device = event.NoDevice
		p.detach(c)
		if c.live == 0 {
			p.removeContext(i)
		}
	}
}
