// Package tensors keeps what frameworks' caching allocators hand out of the segments
// that they took from CUDA: each tensor by the stack that made it, and how much of each
// segment's memory is in tensors. What is left of a segment is cached.
//
// A Ledger routes an event to its process, and has a ledger of call sites (Rows) for the
// tensors themselves. The ledger of the driver layer tells it where memory lies (Follow).
// The invariant: the parts of all tensors in an extent add up to its used bytes.
//
// Like package ledger, on which it rests, it is pure and never fails.
package tensors

import (
	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

const (
	// maxProcesses bounds the processes, ended ones included.
	maxProcesses = 1 << 16
	// maxPools bounds the pools of a process of which only the peak is left.
	maxPools = 1 << 14
	// maxParts bounds the extents that one tensor lies in: they are visited when it
	// begins and ends. All of the largest GPU's memory is 10,000 of PyTorch's 20 MiB.
	maxParts = 1 << 14
)

// A Ledger has the tensors of all traced processes.
type Ledger struct {
	// Rows are of class tensor: one for each.
	Rows *ledger.Ledger
	// Layout, if set before the first event: there are pieces of processes without
	// tensors too, and those of ended processes stay.
	Layout bool

	driver *ledger.Ledger // where extents are found, nil for nowhere
	procs  map[event.Process]*process

	fates  fateTable
	freers freerTable
	seen   bool // a tensor
	loss   *loss.Set
	pieces ledger.Changes[Piece] // see TakePieces
	row    event.Event           // that Rows gets for a tensor
}

var causes loss.Causes

var (
	lossProcesses = causes.Add("tensor_callers_full", "tensors not counted because there were too many processes")
	lossLive      = causes.Add("tensor_live_full", "tensors not counted because too many were live: their bytes count as cached")
	lossParts     = causes.Add("tensor_parts_full", "tensors not counted because they lie in too many pieces of memory: their bytes count as cached")
	lossAfter     = causes.Add("tensor_after_exit", "tensors created or freed whose event came after the end of their process")
	lossOverlap   = causes.Add("tensor_overlapping", "tensors not counted because other tensors already cover all of their memory")
	lossSegment   = causes.Add("tensor_outlived", "tensors counted as freed because their memory was freed before their own free was seen")
	lossPoolBegun = causes.Add("tensor_private_pool_begin_unseen", "times that PyTorch stopped allocating for a private pool without having been seen to start: memory that it allocated until then may belong to that pool")
	lossPoolEnded = causes.Add("tensor_private_pool_end_unseen", "times that PyTorch started to allocate for a private pool that it had not been seen to stop allocating for: some of this memory may belong to another pool")
	lossPools     = causes.Add("tensor_private_pools_full", "private pools that are not kept apart because PyTorch allocated for too many of them at once")
	lossTotals    = causes.Add("tensor_totals_differ", "tensors made or freed without being seen, as the allocator's own totals show")
)

// New returns an empty Ledger. The functions in opt are called for its Rows.
func New(opt ledger.Options) *Ledger {
	l := &Ledger{procs: map[event.Process]*process{}, loss: loss.New(causes)}
	l.fates = fateTable{processes: map[event.Process]*processFates{}, sweepAt: maxFates, loss: l.loss}
	l.freers = freerTable{processes: map[event.Process]map[Freer]Freed{}, loss: l.loss}
	l.Rows = ledger.New(opt)
	return l
}

// SetDriver sets the ledger of the driver layer, in whose memory tensors lie: see Follow.
// Processes without tensors have no memory here.
func (l *Ledger) SetDriver(driver *ledger.Ledger) { l.driver = driver }

// Loss returns every cause of loss of the layer.
func (l *Ledger) Loss() []loss.Counter { return l.Rows.LossOf(l.loss, "tensor_") }

// process returns the state of id, made if need be, or nil when there is no room.
func (l *Ledger) process(id event.Process) *process {
	p := l.procs[id]
	if p != nil {
		return p
	}
	if len(l.procs) >= maxProcesses {
		l.loss.Add(lossProcesses, 1)
		return nil
	}
	if p = l.add(id); !l.Layout {
		p.adopt()
	}
	return p
}

// add makes a process that has no memory.
func (l *Ledger) add(id event.Process) *process {
	p := &process{l: l, id: id, ended: l.Rows.Exited(id)}
	p.reset()
	l.procs[id] = p
	return p
}

// adopt adds the memory that the driver layer knows.
func (p *process) adopt() {
	if p.l.driver != nil && !p.ended {
		for _, x := range p.l.driver.Extents(p.id) {
			p.l.follow(&x, nil)
		}
	}
}

// unknown is the state of a process that is not known.
var unknown = process{}

// lookup returns the state of a process, to be read.
func (l *Ledger) lookup(id event.Process) *process {
	if p := l.procs[id]; p != nil {
		return p
	}
	return &unknown
}

// Apply applies one event: of the allocator (see Follow for others), or an exec or exit,
// which comes here before the ledger of the driver layer has it. It does not keep e.
func (l *Ledger) Apply(e *event.Event) {
	switch e.Op {
	case event.OpExec:
		if p := l.procs[e.Proc]; p != nil && !p.ended && e.Time >= l.Rows.ImageStart(e.Proc) {
			p.replaceImage(e.Time)
		}
		l.Rows.Apply(e)
	case event.OpExit:
		if p := l.procs[e.Proc]; p != nil {
			p.exit()
		}
		l.Rows.Apply(e)
	case event.OpTensorAlloc, event.OpTensorFree:
		p := l.process(e.Proc)
		switch {
		case p == nil:
		case p.ended:
			l.loss.Add(lossAfter, 1)
		case e.Op == event.OpTensorAlloc:
			p.alloc(e)
		default:
			p.free(e)
		}
	default:
		if p := l.process(e.Proc); p != nil && !p.ended {
			p.applyAllocator(e)
		}
	}
}

// rowOf returns what Rows gets of a tensor's event: an OpAlloc or an OpFree.
func (l *Ledger) rowOf(e *event.Event, op event.Op) *event.Event {
	l.row = *e
	l.row.Op = op
	return &l.row
}

// applyAllocator applies what an allocator reports besides tensors.
func (p *process) applyAllocator(e *event.Event) {
	switch e.Op {
	case event.OpPrivatePoolBegin:
		p.windows.open(e, p.l.loss)
	case event.OpPrivatePoolEnd:
		if !p.windows.remove(e) {
			p.l.loss.Add(lossPoolBegun, 1)
			p.memory.doubt(e.Device)
		}
	case event.OpPrivatePoolMemory:
		for x := range p.memory.within(e.Addr, e.Addr+e.Size) {
			x.private = holder.PoolID{First: e.Handle, Second: e.Part}
		}
	}
}

// Follows returns whether it matters where a process's memory lies.
func (l *Ledger) Follows(proc event.Process) bool { return l.Layout || l.procs[proc] != nil }

// Follow applies what the driver layer's ledger made of an event e of that layer: which of its
// memory began, and which ended. Where e is nil, memory that begins is older than the process's
// first window.
func (l *Ledger) Follow(e *event.Event) {
	l.capture(e)
	for x := range l.driver.TakeExtents {
		l.follow(x, e)
	}
}

func (l *Ledger) follow(x *ledger.Extent, e *event.Event) {
	p := l.procs[x.Proc]
	if p == nil && l.Layout && x.Site != nil {
		p = l.process(x.Proc)
	}
	switch {
	case p == nil || p.ended:
	case x.Site == nil:
		p.memory.end(x.From, x.To)
	case x.From < x.To:
		p.memory.begin(x, e)
	}
}

// MarkPeak makes what each site and pool of proc holds its peak.
func (l *Ledger) MarkPeak(proc event.Process) {
	l.Rows.MarkPeak(proc)
	if p := l.procs[proc]; p != nil {
		p.epoch++
	}
}

// Returned returns the bytes of segments, of pools that tensors were in, that a process
// ever gave back.
func (l *Ledger) Returned(proc event.Process) int64 { return l.lookup(proc).memory.returned }

// dropRow removes the row of a tensor that is not newer than at.
func (l *Ledger) dropRow(proc event.Process, addr, at uint64) {
	l.Rows.Apply(&event.Event{Op: event.OpFree, Time: at, Proc: proc, Addr: addr})
}

// Pool returns the memory of a call site from which tensors were handed out, nil for none.
func (l *Ledger) Pool(at *ledger.Site) *Pool {
	if pool := l.lookup(at.Proc).memory.pools[at]; pool != nil && pool.HandedExtents > 0 {
		return pool
	}
	return nil
}

// Pools yields the memory that tensors were handed out of.
func (l *Ledger) Pools(yield func(event.Process, Pool) bool) {
	for _, p := range l.procs {
		if !p.memory.each(yield) {
			return
		}
	}
}

// Devices yields what the allocators of each process report, by its devices.
func (l *Ledger) Devices(yield func(event.Process, Device) bool) {
	for id, p := range l.procs {
		for _, d := range p.devices {
			if !yield(id, *d) {
				return
			}
		}
	}
}

// DevicesOf returns what the allocators of a process report, by its devices.
func (l *Ledger) DevicesOf(proc event.Process) map[int32]*Device { return l.lookup(proc).devices }

// Seen returns whether there ever was a tensor: a trace without the layer has none.
func (l *Ledger) Seen() bool { return l.seen }

// Bytes returns what a process has in tensors.
func (l *Ledger) Bytes(proc event.Process) (sum int64) {
	for _, d := range l.DevicesOf(proc) {
		sum += d.Bytes
	}
	return sum
}

// Release ends what proc, which has exited, held when it did.
func (l *Ledger) Release(proc event.Process) {
	l.Rows.Release(proc)
	if p := l.procs[proc]; p != nil && p.ended {
		p.reset()
	}
}

// Forget removes all that is known of proc.
func (l *Ledger) Forget(proc event.Process) {
	l.Rows.Forget(proc)
	l.fates.forget(proc)
	l.freers.forget(proc)
	delete(l.procs, proc)
}
