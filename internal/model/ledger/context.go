package ledger

import "github.com/gpumemtrace/gpumemtrace/internal/model/event"

// maxContexts bounds the contexts of one process, so that an extraRow can
// name each. Memory of a context beyond them is memory of a context that is
// not known.
const maxContexts = extraMaxContext

// The first two entries of a contextTable.
const (
	ctxUnknown uint32 = iota // memory of a context that is not known
	ctxNone                  // memory that belongs to no context
)

// A context is one CUcontext of a process.
type context struct {
	handle     uint64
	created    uint64 // when it was created, 0: it may be older than the trace
	older      bool   // counted in contextTable.older
	green      bool   // a part of a primary context, see event.ContextGreen
	references int    // beyond the first, see event.ContextAttached
	device     int32
	live       int      // allocations in it
	unresolved []uint32 // sites that wait for its device
}

// A contextTable has the contexts of one process.
type contextTable struct {
	slots[context] // ctxUnknown, ctxNone, then by handle
	p              *process
	at             map[uint64]uint32 // by handle
	older          int               // contexts known since the last exec that were not seen created
	last           uint64            // the handle of the last event, 0 for none
	lastIndex      uint32
}

func newContextTable(p *process) contextTable {
	return contextTable{p: p, at: map[uint64]uint32{},
		slots: slots[context]{all: []context{ctxUnknown: {device: event.NoDevice}, ctxNone: {device: event.NoDevice}}}}
}

// inContext says whether memory of kind k belongs to a context and ends with
// it. CUDA's documentation of cuCtxDestroy names cuMemAlloc, cuMemAllocHost,
// cuMemAllocManaged, cuMemAllocPitch, CUarray and CUexternalMemory as ended;
// and cuMemCreate, cuMemAllocAsync and cuMemAllocFromPoolAsync as associated
// with no context. It does not name cuMemHostRegister: page-locking is the
// context's, as with cuMemAllocHost. Graph memory comes from a device's pool.
func inContext(k event.Kind) bool {
	switch k {
	case event.KindAsync, event.KindAsyncHost, event.KindAsyncManaged, event.KindVMM, event.KindVMMHost, event.KindGraph:
		return false
	}
	return true
}

// index returns the index of the context handle, made if need be. It is ctxUnknown for
// handle 0, and when there are too many contexts.
func (t *contextTable) index(handle uint64) uint32 {
	if handle == 0 {
		return ctxUnknown
	}
	if handle == t.last {
		return t.lastIndex
	}
	i, ok := t.at[handle]
	if !ok {
		if i, ok = t.put(1+maxContexts, context{handle: handle, device: event.NoDevice}); !ok {
			t.p.loss.Add(lossContexts, 1)
			t.older++
			return ctxUnknown
		}
		t.at[handle] = i
	}
	if c := &t.all[i]; c.created == 0 && !c.older && !c.green {
		c.older = true
		t.older++
	}
	t.last, t.lastIndex = handle, i
	return i
}

func (t *contextTable) remove(i uint32) {
	delete(t.at, t.all[i].handle)
	t.release(i)
	if t.lastIndex == i {
		t.last = 0
	}
}

// create applies OpContextCreate. Older allocations in a context of the same
// handle ended with that context.
func (t *contextTable) create(e *event.Event) {
	i := t.index(e.Ctx)
	if i == ctxUnknown {
		return
	}
	c := &t.all[i]
	if c.live > 0 && e.Time > c.created {
		n := c.live
		t.endAllocations(e.Time, func(ctx uint32, _ int32) bool { return ctx == i })
		t.p.loss.Add(lossReplaced, uint64(n-c.live))
	}
	if c.older {
		c.older = false
		t.older--
	}
	c.created, c.references, c.green = max(c.created, e.Time), 0, false
	t.known(c, e)
}

// maxReferences bounds the references to a context that are counted.
const maxReferences = 1 << 16

// seen applies OpContextSeen.
func (t *contextTable) seen(e *event.Event) {
	i := t.index(e.Ctx)
	if i == ctxUnknown {
		return
	}
	c := &t.all[i]
	switch {
	case e.Part == event.ContextAttached:
		c.references = min(c.references+int(min(max(e.Size, 1), maxReferences)), maxReferences)
	case e.Part == event.ContextGreen && c.created == 0:
		if c.green = true; c.older {
			c.older = false
			t.older--
		}
	}
	t.known(c, e)
}

// known gives c the device that e says, and the sites that waited for it.
func (t *contextTable) known(c *context, e *event.Event) {
	if e.Device <= event.NoDevice {
		return
	}
	for _, id := range t.detachSites(c) {
		s := t.p.sites.all[id]
		s.Device, s.Ctx = e.Device, 0
		t.p.sites.assignDevice(s)
	}
	c.device = e.Device
}

// detachSites returns the sites that wait for c's device, and lets no further
// allocation find them: c's handle may soon mean another device.
func (t *contextTable) detachSites(c *context) []uint32 {
	ids := c.unresolved
	for _, id := range ids {
		delete(t.p.sites.at, t.p.sites.all[id].key())
	}
	c.unresolved = nil
	return ids
}

// destroy applies OpContextDestroy.
//
// An allocation whose context is not known was made in one that was current on
// its thread since before the trace. It ends with this context if this one may be
// that old and no other known one is, or if the kernel driver's memory shows it (see
// Evidence). Else it stays: a user notices memory that is shown for too long, and never
// memory that is missing.
func (t *contextTable) destroy(e *event.Event) {
	i := t.index(e.Ctx)
	if i == ctxUnknown {
		return
	}
	c := &t.all[i]
	switch {
	case e.Part != event.ContextDetached:
	case c.references > 0:
		c.references--
		return
	case c.created == 0 && (t.p.l.evidence == nil || len(t.p.l.evidence.Gone) == 0):
		return // how many references there were is not known
	}
	alone := false
	x := &contextEnd{}
	if c.created == 0 && t.all[ctxUnknown].live > 0 {
		x = t.p.contextEnd(e)
		f := x.fates[ctxUnknown]
		alone = c.older && t.older == 1 && !f.live || f.ended()
	}
	t.p.allocs.endGone(x)
	if c.live > 0 || alone {
		t.endAllocations(e.Time, func(ctx uint32, _ int32) bool {
			return ctx == i || ctx == ctxUnknown && alone
		})
	}
	if c.created == 0 && !alone && t.all[ctxUnknown].live > 0 {
		t.p.loss.Add(lossOwner, 1)
	}
	if e.Time < c.created {
		return // an earlier context of this handle ended
	}
	t.end(c, i)
	t.last = 0
}

// end makes context i unknown. It stays as long as newer allocations, of a context that
// reuses its handle, refer to it.
func (t *contextTable) end(c *context, i uint32) {
	c.device, c.created, c.older, c.green, c.references = event.NoDevice, 0, false, false, 0
	t.detachSites(c)
	if c.live == 0 {
		t.remove(i)
	}
}

// primaryReset applies OpPrimaryReset. Which of a device's contexts from before the
// trace is the primary one is not known: all of them end, because a process that
// uses the primary one rarely has another. A context that was seen created is not
// the primary one. Memory that may be on another device stays, unless the kernel
// driver's memory shows that it went (see Evidence).
func (t *contextTable) primaryReset(e *event.Event) {
	if e.Device <= event.NoDevice {
		t.p.loss.Add(lossReset, 1)
		return
	}
	alone := event.NoDevice
	if t.older == 1 {
		for _, i := range t.at {
			if t.all[i].older {
				alone = t.all[i].device
			}
		}
	}
	undecided := false
	x := t.p.contextEnd(e)
	t.p.allocs.endGone(x)
	t.endAllocations(e.Time, func(ctx uint32, device int32) bool {
		c := &t.all[ctx]
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
		t.p.loss.Add(lossOwner, 1)
	}
}

// primaryRelease applies OpPrimaryRelease. The driver ends the primary context when its
// last reference goes, but references from before the trace began are not known. It was
// the last one if memory of live allocations went with it; else allocations end with
// their own frees, or with the process.
func (t *contextTable) primaryRelease(e *event.Event) {
	if ev := t.p.l.evidence; ev == nil || len(ev.Gone) == 0 {
		return
	}
	if x := t.p.contextEnd(e); len(x.gone) > 0 {
		t.primaryReset(e)
	}
}

// endAllocations ends the allocations not newer than at that belong to contexts and
// match: ctx is an index into t.all, device the one of the call site.
func (t *contextTable) endAllocations(at uint64, match func(ctx uint32, device int32) bool) {
	t.p.allocs.endRows(at, func(r *row) bool {
		return r.ctx != ctxNone && match(r.ctx, t.p.sites.all[r.site].Device)
	})
	t.p.allocs.endExtraRows(func(r extraRow) bool {
		return r.ctx() != ctxNone && match(r.ctx(), event.NoDevice)
	})
}

// reset removes the contexts that no newer allocation uses.
func (t *contextTable) reset() {
	t.older, t.last = 0, 0
	for _, i := range t.at {
		t.end(&t.all[i], i)
	}
}
