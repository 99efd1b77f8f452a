package ledger

import (
	"math"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

const never = math.MaxUint64

// A process is the state of one process: its call sites, and tables of what its calls
// bring and end.
type process struct {
	l    *Ledger
	loss *loss.Set
	id   event.Process
	at   int // in Ledger.order

	active bool   // it called CUDA's memory functions: it has tables
	exited bool   // its last thread ended
	frozen bool   // only its figures are left: no rows, no mappings
	exec   uint64 // time of its last exec, 0 for none
	end    uint64 // when its last thread ended, or never

	held Held // of its entries in the tables of all

	sites    siteTable
	allocs   allocTable
	vmm      vmmTable
	contexts contextTable
	pools    poolTable
	graphs   graphTable
}

// activate makes what p needs from its first call of CUDA's on.
func (p *process) activate() {
	if p.active {
		return
	}
	p.active = true
	p.sites, p.allocs, p.vmm = newSiteTable(p), newAllocTable(p), newVMMTable(p)
	p.contexts, p.pools, p.graphs = newContextTable(p), newPoolTable(p.loss), newGraphTable(p)
}

// apply applies an event of the process.
func (p *process) apply(e *event.Event) {
	switch e.Op {
	case event.OpFork:
		return // a child has none of its parent's GPU memory
	case event.OpExec:
		p.replaceImage(e.Time)
		return
	case event.OpExit:
		p.l.exit(p, e.Time)
		return
	}
	p.activate()
	if e.Result == event.InvalidContext || e.Result == event.ContextDestroyed {
		nowhere := *e // the context that was current had ended
		nowhere.Ctx = 0
		e = &nowhere
	}
	if e.Time > p.exec {
		p.contexts.index(e.Ctx)
	}
	switch {
	case e.Result != event.Success:
		p.applyFailure(e)
	case p.over(e.Time):
		p.applyLate(e)
	default:
		if effect := effects[e.Op]; effect != nil {
			effect(p, e)
		}
	}
}

// effects are what a success of each Op does to a living process. One that is
// left out does nothing: address space (OpReserve, OpUnreserve) is no memory.
var effects = [event.OpExit + 1]func(*process, *event.Event){
	event.OpAlloc:            func(p *process, e *event.Event) { p.allocs.alloc(e) },
	event.OpFree:             func(p *process, e *event.Event) { p.allocs.free(e) },
	event.OpOpen:             func(p *process, e *event.Event) { p.allocs.open(e) },
	event.OpHandleCreate:     func(p *process, e *event.Event) { p.vmm.create(e) },
	event.OpHandleImport:     func(p *process, e *event.Event) { p.vmm.importHandle(e) },
	event.OpHandleRetain:     func(p *process, e *event.Event) { p.vmm.retain(e) },
	event.OpHandleRelease:    func(p *process, e *event.Event) { p.vmm.releaseHandle(e) },
	event.OpMap:              func(p *process, e *event.Event) { p.vmm.mapRange(e) },
	event.OpUnmap:            func(p *process, e *event.Event) { p.vmm.unmapRange(e) },
	event.OpMapArray:         func(p *process, e *event.Event) { p.vmm.mapPart(e) },
	event.OpUnmapArray:       func(p *process, e *event.Event) { p.vmm.unmapPart(e) },
	event.OpCaptureBegin:     func(p *process, e *event.Event) { p.graphs.beginCapture(e) },
	event.OpCaptureEnd:       func(p *process, e *event.Event) { p.graphs.endCapture(e) },
	event.OpGraphInstantiate: func(p *process, e *event.Event) { p.graphs.instantiate(e) },
	event.OpGraphMove:        func(p *process, e *event.Event) { p.graphs.move(e) },
	event.OpGraphDestroy:     func(p *process, e *event.Event) { p.graphs.destroy(e) },
	event.OpPoolCreate:       func(p *process, e *event.Event) { p.pools.create(e) },
	event.OpPoolDestroy:      func(p *process, e *event.Event) { p.pools.destroy(e) },
	event.OpPoolTrim:         func(p *process, e *event.Event) { p.pools.trim(e) },
	event.OpContextCreate:    func(p *process, e *event.Event) { p.contexts.create(e) },
	event.OpContextSeen:      func(p *process, e *event.Event) { p.contexts.seen(e) },
	event.OpContextDestroy:   func(p *process, e *event.Event) { p.contexts.destroy(e) },
	event.OpPrimaryRelease:   func(p *process, e *event.Event) { p.contexts.primaryRelease(e) },
	event.OpPrimaryReset:     func(p *process, e *event.Event) { p.contexts.primaryReset(e) },
}

// applyFailure applies a call that failed: one that would have brought memory counts
// in nothing but the failed figures.
func (p *process) applyFailure(e *event.Event) {
	switch {
	case allocates(e.Op):
		p.sites.countFailure(e)
	case e.Op == event.OpCaptureEnd && !p.over(e.Time):
		p.graphs.endCapture(e)
	}
}

// applyLate applies a successful call that came after the exec or the exit of its
// process: the memory that it brought is gone, and what it ended had ended before.
func (p *process) applyLate(e *event.Event) {
	switch {
	case allocates(e.Op):
		_, s := p.sites.find(e)
		w := one(e.Size)
		p.sites.count(s, e.Time, w.objects, uint64(w.bytes))
	case ends(e.Op) && e.Time >= p.end:
		// The process's end had ended it.
	default:
		p.loss.Add(lossLate, 1)
	}
}

// over returns whether the image that an event of time at belongs to had ended by
// then.
func (p *process) over(at uint64) bool {
	return at <= p.exec || at >= p.end || p.frozen
}

// replaceImage ends what the image had that an exec replaced at a time. What is newer
// belongs to the new image, whose first events may have overtaken the exec.
func (p *process) replaceImage(at uint64) {
	if p.exited || at <= p.exec {
		return
	}
	p.exec = at
	p.endMemory(at)
	p.graphs.reset(at)
	p.allocs.unknownObjects, p.allocs.unknownFrees, p.allocs.unknownBytes = 0, 0, 0
}

// endMemory ends all memory not newer than at, with its contexts and pools.
func (p *process) endMemory(at uint64) {
	if !p.active {
		return
	}
	p.allocs.endRows(at, func(*row) bool { return true })
	p.allocs.endExtraRows(func(extraRow) bool { return true })
	p.vmm.reset(at)
	p.contexts.reset()
	p.pools.reset()
}

// addRows changes how many rows p has.
func (p *process) addRows(n int) {
	p.count(Rows, n)
	if p.exited {
		p.l.endedRows += n
	}
}

// freeze drops p's rows and mappings. Its figures stay as they are.
func (p *process) freeze() {
	p.addRows(-p.held[Rows])
	p.count(Extra, -p.held[Extra])
	p.count(Mappings, -p.held[Mappings])
	p.frozen = true
	clear(p.allocs.live[:])
	clear(p.allocs.extra[:])
	p.allocs.opened, p.vmm.handles, p.vmm.mappings, p.vmm.parts = nil, nil, nil, nil
}

// An item is an allocation that has a row: at an address, or physical memory.
type item struct {
	space event.Space // event.NumSpaces for physical memory
	addr  uint64      // or its handle
	row   row
	ph    *physical // nil but for physical memory
}

// items yields the allocations that have a row.
func (p *process) items(yield func(item) bool) {
	for space := range p.allocs.live {
		for addr, r := range p.allocs.live[space].all {
			if !yield(item{event.Space(space), addr, r, nil}) {
				return
			}
		}
	}
	for _, ph := range p.vmm.handles {
		if !ph.extra && !yield(ph.item()) {
			return
		}
	}
}

func (p *process) allocation(x *item) Allocation {
	a := Allocation{Proc: p.id, Space: x.space, Addr: x.addr, Size: x.row.size, Time: x.row.time, Site: p.sites.all[x.row.site]}
	if x.ph != nil {
		a.Space, a.Addr, a.Handle = 0, 0, x.addr
	}
	return a
}

func (p *process) totals() ProcessTotals {
	inuse := &p.sites.inuse
	return ProcessTotals{
		Proc: p.id, Exited: p.exited,
		Inuse: inuse[event.ClassDevice], Peak: p.sites.peak[event.ClassDevice], Allocated: p.sites.allocated,
		Managed: inuse[event.ClassManaged], Host: inuse[event.ClassHost], Imported: inuse[event.ClassImported], Graph: inuse[event.ClassGraph],
		LiveObjects: p.sites.liveObjects, Failed: p.sites.failed, OutOfMemory: p.sites.outOfMemory,
		UnmatchedFrees: p.allocs.unmatchedFrees, Unattributed: p.sites.unattributed[event.ClassDevice], UnknownBytes: p.allocs.unknownBytes,
		AsyncInuse: p.pools.inuse, AsyncHigh: p.pools.high,
	}
}
