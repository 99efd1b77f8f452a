package ledger

import "github.com/gpumemtrace/gpumemtrace/internal/model/event"

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
	created    uint64 // when it was created, 0: it may be older than the trace
	older      bool   // counted in process.older
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

// context returns the index of the context handle, which is ctxUnknown for 0
// and when there are too many.
func (l *Ledger) context(p *process, handle uint64) uint32 {
	if handle == 0 {
		return ctxUnknown
	}
	if handle == p.lastCtx {
		return p.lastCtxIndex
	}
	i, ok := p.contextAt[handle]
	if !ok {
		if i, ok = p.newContext(handle); !ok {
			l.loss.Add(lossContexts, 1)
			p.older++
			return ctxUnknown
		}
	}
	if c := &p.contexts[i]; c.created == 0 && !c.older {
		c.older = true
		p.older++
	}
	p.lastCtx, p.lastCtxIndex = handle, i
	return i
}

func (p *process) newContext(handle uint64) (i uint32, ok bool) {
	i, ok = put(&p.contexts, &p.freeContext, 1+maxContexts, context{handle: handle, device: event.NoDevice})
	if ok {
		p.contextAt[handle] = i
	}
	return i, ok
}

func (p *process) removeContext(i uint32) {
	delete(p.contextAt, p.contexts[i].handle)
	p.freeContext = append(p.freeContext, i)
	if p.lastCtxIndex == i {
		p.lastCtx = 0
	}
}

// contextCreate applies OpContextCreate. Older allocations in a context of the same
// handle ended with that context.
func (l *Ledger) contextCreate(p *process, e *event.Event) {
	i := l.context(p, e.Ctx)
	if i == ctxUnknown {
		return
	}
	c := &p.contexts[i]
	if c.live > 0 && e.Time > c.created {
		n := c.live
		l.endIn(p, e.Time, func(ctx uint32, _ int32) bool { return ctx == i })
		l.loss.Add(lossReplaced, uint64(n-c.live))
	}
	if c.older {
		c.older = false
		p.older--
	}
	c.created = max(c.created, e.Time)
	l.contextSeen(p, e)
}

// contextSeen applies OpContextSeen: sites that waited for the device get it.
func (l *Ledger) contextSeen(p *process, e *event.Event) {
	i := l.context(p, e.Ctx)
	if i == ctxUnknown || e.Device <= event.NoDevice {
		return
	}
	c := &p.contexts[i]
	for _, id := range p.detach(c) {
		s := p.sites[id]
		s.Device, s.Ctx = e.Device, 0
		l.place(p, s)
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

// contextDestroy applies OpContextDestroy.
//
// An allocation whose context is not known was made in one that was current on
// its thread since before the trace. It ends with this context if this one may be
// that old and no other known one is, or if the kernel driver's memory tells so (see
// Evidence). Else it is kept: a user notices memory that is shown for too long, and never
// memory that is missing.
func (l *Ledger) contextDestroy(p *process, e *event.Event) {
	i := l.context(p, e.Ctx)
	if i == ctxUnknown {
		return
	}
	c := &p.contexts[i]
	alone := false
	x := &contextEnd{}
	if c.created == 0 && p.contexts[ctxUnknown].live > 0 {
		x = l.endOf(p, e)
		f := x.fates[ctxUnknown]
		alone = p.older == 1 && !f.live || f.ended()
	}
	l.endGone(p, x)
	if c.live > 0 || alone {
		l.endIn(p, e.Time, func(ctx uint32, _ int32) bool {
			return ctx == i || ctx == ctxUnknown && alone
		})
	}
	if c.created == 0 && !alone && p.contexts[ctxUnknown].live > 0 {
		l.loss.Add(lossOwner, 1)
	}
	if e.Time < c.created {
		return // an earlier context of this handle ended
	}
	c.device, c.created, c.older = event.NoDevice, 0, false
	p.detach(c)
	p.lastCtx = 0
	if c.live == 0 { // newer ones belong to a context that reuses the handle
		p.removeContext(i)
	}
}

// primaryReset applies OpPrimaryReset. Which of a device's contexts from before the
// trace is the primary one is not known: all of them end, because a process that
// uses the primary one rarely has another. A context that was seen created is not
// the primary one. Memory that may be on another device is kept, unless the kernel
// driver's memory tells that it went (see Evidence).
func (l *Ledger) primaryReset(p *process, e *event.Event) {
	if e.Device <= event.NoDevice {
		l.loss.Add(lossReset, 1)
		return
	}
	alone := event.NoDevice
	if p.older == 1 {
		for _, i := range p.contextAt {
			if p.contexts[i].older {
				alone = p.contexts[i].device
			}
		}
	}
	undecided := false
	x := l.endOf(p, e)
	l.endGone(p, x)
	l.endIn(p, e.Time, func(ctx uint32, device int32) bool {
		c := &p.contexts[ctx]
		if c.created != 0 {
			return false
		}
		if c.device != event.NoDevice {
			device = c.device
		} else if device == event.NoDevice && ctx == ctxUnknown {
			device = alone
		}
		if device == event.NoDevice && x.decides(ctx) {
			return true
		}
		undecided = undecided || device == event.NoDevice
		return device == e.Device
	})
	if undecided {
		l.loss.Add(lossOwner, 1)
	}
}

// primaryRelease applies OpPrimaryRelease. The driver ends the primary context when its
// last reference goes, but references from before the trace began are not known. It was
// the last one if it took memory of live allocations with it; else allocations end with
// their own frees, or with the process.
func (l *Ledger) primaryRelease(p *process, e *event.Event) {
	if l.evidence == nil || len(l.evidence.Gone) == 0 {
		return
	}
	if x := l.endOf(p, e); len(x.gone) > 0 {
		l.primaryReset(p, e)
	}
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
	p.older, p.lastCtx = 0, 0
	for _, i := range p.contextAt {
		c := &p.contexts[i]
		c.device, c.created, c.older = event.NoDevice, 0, false
		p.detach(c)
		if c.live == 0 {
			p.removeContext(i)
		}
	}
}
