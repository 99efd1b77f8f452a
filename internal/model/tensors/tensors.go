// Package tensors keeps what frameworks' caching allocators hand out of the segments
// that they took from CUDA: each tensor by the stack that it was made at, and how
// much of each segment's memory is in tensors. What is left of a segment is cached.
//
// Like package ledger, on which it rests, it is pure and never fails.
package tensors

import (
	"github.com/google/btree"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

const (
	// maxProcesses bounds the processes, ended ones included.
	maxProcesses = 1 << 16
	// maxPools bounds the pools of a process of which only the peak is left.
	maxPools = 1 << 14
	// maxParts bounds the extents that one tensor lies in: they are gone through when it
	// comes and goes. All of the largest GPU's memory is 10,000 of PyTorch's 20 MiB.
	maxParts = 1 << 14
)

// A Ledger holds the tensors of all traced processes.
type Ledger struct {
	// Rows are of class tensor: one for each.
	Rows *ledger.Ledger
	// Laid, if set, hears of each Piece that comes to lie somewhere, and of its end, in
	// order. The end of a process is none of its pieces: see Ends.
	Laid func(Piece)
	// Layout, if set before the first event: there are pieces of processes without
	// tensors too, and those of ended processes stay.
	Layout bool

	driver      *ledger.Ledger // where extents are found, nil for nowhere
	procs       map[event.Process]*process
	seen        bool   // a tensor
	sample, min uint64 // which are told, as in record.Tensors
	pairs       int    // in the freed of all processes
	loss        *loss.Set
	during      *event.Event // see During

	fates   int // of all processes
	fatesAt int // how many are looked through for those that nobody asks for
}

type process struct {
	id         event.Process
	extents    *btree.BTreeG[*extent] // by address, never overlapping
	tensors    map[uint64]tensor      // by address
	pools      map[*ledger.Site]*Pool
	tidyAt     int             // how many pools are looked through for what is left of old ones
	outside    map[int32]*Pool // tensors in memory that was not seen allocated, by device
	devices    map[int32]*Device
	allocators map[int32]*Allocator // by device; where not every tensor is told
	fates      map[uint64]*Fate     // by stack
	last       map[uint32]made      // by thread
	freed      map[Freer]Freed      // nil where frees have no stacks
	epoch      uint64               // counts peaks
	windows    []window             // by age
	ends       int64                // see Returned
	ended      bool
	left       []Segments // of one that has ended: as they were then
}

// A tensor has a part in each extent that it lies in, mostly one. With expandable
// segments an extent is a piece of 2 or 20 MiB.
type tensor struct {
	time, size uint64
	stack      uint64
	thread     uint32 // that made it
	device     int32
	first      part
	more       []part
}

// A part is bytes of a tensor in an extent, nil where none is known.
type part struct {
	in    *extent
	bytes uint64
}

// A Pool is the memory of one call site of the driver layer from which tensors
// were handed out.
type Pool struct {
	// Site is nil for memory that was not seen allocated, on Device.
	Site   *ledger.Site
	Device int32
	// Inuse are bytes in tensors, and Peak what they were at the process's peak. Where
	// not every tensor is told they are all of the extents that a tensor was in.
	Inuse, Peak int64
	Handed      int // extents of it that a tensor was in

	handed  bool // Handed was not 0
	epoch   uint64
	extents int
}

// A Device is what one process's allocators say of a device. Bytes are those of
// tensors that were seen made and not freed.
type Device struct {
	Index int32 // CUDA ordinal inside the process
	Bytes int64
	// Before are bytes beyond those that are handed out too, as far as that is
	// told: from before the trace, or lost.
	Before int64
	Told   bool
	// Reserved is what the allocator holds.
	Reserved int64
}

var causes loss.Causes

var (
	lossProcesses = causes.Add("tensor_callers_full", "tensors not counted because there were too many processes")
	lossLive      = causes.Add("tensor_live_full", "tensors not counted because too many were live: they are in what is cached")
	lossParts     = causes.Add("tensor_parts_full", "tensors not counted because they lie in too many pieces of memory: they are in what is cached")
	lossAfter     = causes.Add("tensor_after_exit", "tensors made or freed of which was told after the end of their process")
	lossOverlap   = causes.Add("tensor_overlapping", "tensors not counted because what they lie in is all in other tensors")
	lossSegment   = causes.Add("tensor_outlived", "tensors retired because the memory that they lie in ended before their free was seen")
	lossPoolBegun = causes.Add("tensor_private_pool_begin_unseen", "times that PyTorch was seen to end taking memory for a private pool that it was not seen to begin with: what it took until then may be that pool's")
	lossPoolEnded = causes.Add("tensor_private_pool_end_unseen", "times that PyTorch began to take memory for a private pool that it already took some for, as far as was seen: some of it may be another pool's")
	lossPools     = causes.Add("tensor_private_pools_full", "private pools not told apart because PyTorch took memory for too many at once")
	lossTotals    = causes.Add("tensor_totals_differ", "tensors made or freed without being seen, as the allocator's own totals show")
)

// New returns an empty Ledger.
func New(opt ledger.Options) *Ledger {
	l := &Ledger{procs: map[event.Process]*process{}, loss: loss.New(causes), fatesAt: maxFates}
	opt.Weigh, opt.Demoted = l.weigh, l.demoted
	l.Rows = ledger.New(opt)
	return l
}

// Over says in whose memory tensors lie: in that of the driver layer, which has l as its
// Extents. Processes without tensors have none here.
func (l *Ledger) Over(driver *ledger.Ledger) { l.driver = driver }

// Loss returns every cause of loss of the layer.
func (l *Ledger) Loss() []loss.Counter {
	out := l.loss.Counters()
	for _, c := range l.Rows.Loss() {
		c.Name = "tensor_" + c.Name
		out = append(out, c)
	}
	return out
}

func (l *Ledger) process(id event.Process) *process {
	p := l.procs[id]
	if p == nil {
		if len(l.procs) >= maxProcesses {
			l.loss.Add(lossProcesses, 1)
			return nil
		}
		p = &process{id: id, fates: map[uint64]*Fate{}, last: map[uint32]made{}, ended: l.Rows.Exited(id)}
		p.begin()
		l.procs[id] = p
		if l.driver != nil && !p.ended && !l.Layout {
			l.driver.Tell(id, l)
		}
	}
	return p
}

func (p *process) begin() {
	p.extents = btree.NewG(16, func(a, b *extent) bool { return a.from < b.from })
	p.tensors, p.devices, p.allocators = map[uint64]tensor{}, map[int32]*Device{}, map[int32]*Allocator{}
	p.pools, p.outside, p.tidyAt = map[*ledger.Site]*Pool{}, map[int32]*Pool{}, maxPools
}

// Apply takes one event into account: of SpaceTensor (see During for others), or an exec
// or exit, which comes here before the ledger of the driver layer has it. It does not
// keep e.
func (l *Ledger) Apply(e *event.Event) {
	switch e.Op {
	case event.OpExec:
		if p := l.procs[e.Proc]; p != nil && !p.ended && e.Time >= l.Rows.Since(e.Proc) {
			l.replaced(p, e.Time)
		}
	case event.OpExit:
		if p := l.procs[e.Proc]; p != nil {
			l.exits(p)
		}
	case event.OpAlloc:
		if p := l.living(e.Proc); p == nil || !l.alloc(p, e) {
			return
		}
	case event.OpFree:
		p := l.living(e.Proc)
		if p == nil {
			return
		}
		if l.Rows.Takes(e) {
			l.free(p, e)
		}
	case event.OpCaptureBegin, event.OpCaptureEnd:
		if p := l.process(e.Proc); p != nil && !p.ended {
			l.window(p, e)
		}
		return
	case event.OpMap:
		if p := l.process(e.Proc); p != nil && !p.ended {
			for x := range p.within(e.Addr, e.Addr+e.Size) {
				x.private = PoolID{e.Handle, e.Part}
			}
		}
		return
	case event.OpReserve:
		if p := l.process(e.Proc); p != nil && !p.ended && e.Addr+e.Size > e.Addr {
			l.seen = true
			l.within(p, e.Addr, e.Addr+e.Size)
			l.compare(p, e)
		}
		return
	}
	l.Rows.Apply(e)
}

// living returns the process of an event, nil if it has ended, or there is no room.
func (l *Ledger) living(id event.Process) *process {
	p := l.process(id)
	if p != nil && p.ended {
		l.loss.Add(lossAfter, 1)
		return nil
	}
	return p
}

// exits ends the process. Its sums stay: nothing ends that they are of.
func (l *Ledger) exits(p *process) {
	if p.ended {
		return // its PID had another holder before it was told
	}
	p.ended = true
	p.left = p.segments()
	p.last, p.windows = nil, nil
	if !l.Layout {
		p.extents.Clear(false)
		p.tensors = nil
	}
}

// replaced ends what an image that an exec replaced at time t had. What is newer
// belongs to the new one, whose first events may have overtaken the exec; its segments
// end with the ledger of the driver layer.
func (l *Ledger) replaced(p *process, t uint64) {
	for _, addr := range p.addresses() {
		if x := p.tensors[addr]; x.time <= t {
			l.end(p, addr, &x)
		}
	}
	p.closeWindows(t)
	clear(p.allocators)
	for _, d := range p.devices {
		*d = Device{Index: d.Index, Bytes: d.Bytes}
	}
}

// alloc tells whether the tensor counts.
func (l *Ledger) alloc(p *process, e *event.Event) bool {
	l.seen = true
	switch {
	case e.Addr == 0 || !l.Rows.Takes(e):
		return true // Rows counts what cannot be
	case e.Size == 0:
		return false // it is nothing
	}
	old, replaces := p.tensors[e.Addr]
	if replaces {
		if old.time > e.Time {
			return true // this one ended before the one that is there began
		}
		l.end(p, e.Addr, &old)
	} else if !l.Rows.Room(e.Proc) {
		l.loss.Add(lossLive, 1)
		return false
	}
	t := tensor{time: e.Time, size: e.Size, stack: e.Stack, thread: e.TID, device: e.Device}
	if why, ok := p.place(&t, e.Addr); !ok {
		l.loss.Add(why, 1)
		if replaces {
			l.drop(e.Proc, e.Addr, e.Time)
		}
		return false
	}
	p.tensors[e.Addr] = t
	l.hold(p, e.Addr, &t, 1)
	l.lay(t.piece(p.id, e.Addr))
	p.makes(e)
	l.compare(p, e)
	return true
}

func (l *Ledger) free(p *process, e *event.Event) {
	switch t, ok := p.tensors[e.Addr]; {
	case !ok:
		p.device(e.Device).Before -= int64(e.Size)
		l.within(p, e.Addr, e.Addr+1)
	case t.time > e.Time: // one that was there before
	default:
		l.end(p, e.Addr, &t)
		l.count(p, &t, e)
		l.frees(p, &t, e)
	}
	l.compare(p, e)
}

// compare holds what was seen to what the allocator says.
func (l *Ledger) compare(p *process, e *event.Event) {
	if e.Handle == event.NoTotal {
		return
	}
	if l.Partial() {
		if e.Time >= l.Rows.Since(e.Proc) {
			a := p.allocator(e.Device)
			a.total(e.Time, e.Handle)
			p.outsideOf(a, e.Part)
		}
		return
	}
	d := p.device(e.Device)
	d.Reserved = int64(e.Part)
	before := int64(e.Handle) - d.Bytes
	if d.Told && before != d.Before {
		l.loss.Add(lossTotals, 1)
	}
	d.Before, d.Told = before, true
}

func (p *process) device(index int32) *Device {
	d := p.devices[index]
	if d == nil {
		d = &Device{Index: index}
		p.devices[index] = d
	}
	return d
}

func (l *Ledger) end(p *process, addr uint64, t *tensor) {
	delete(p.tensors, addr)
	l.hold(p, addr, t, -1)
	l.lay(t.piece(p.id, addr).end())
}

// demoted takes a tensor out that lost its row to another process's.
func (l *Ledger) demoted(proc event.Process, addr uint64) {
	p := l.procs[proc]
	if t, ok := p.tensors[addr]; ok {
		l.end(p, addr, &t)
		l.loss.Add(lossLive, 1)
	}
}

// hold counts t, at addr, in (1), or out (-1).
func (l *Ledger) hold(p *process, addr uint64, t *tensor, sign int64) {
	p.device(t.device).Bytes += sign * int64(t.size)
	l.holdPart(p, addr, t.first, t.device, sign)
	for _, x := range t.more {
		l.holdPart(p, addr, x, t.device, sign)
	}
}

// Mark makes what each site and pool of proc holds its peak.
func (l *Ledger) Mark(proc event.Process) {
	l.Rows.Mark(proc)
	if p := l.procs[proc]; p != nil {
		p.epoch++
	}
}

// Returned returns the bytes of segments, of pools that tensors were in, that a process
// ever gave back.
func (l *Ledger) Returned(proc event.Process) int64 {
	if p := l.procs[proc]; p != nil {
		return p.ends
	}
	return 0
}

// drop takes away the row of a tensor that is not newer than t.
func (l *Ledger) drop(proc event.Process, addr, t uint64) {
	l.Rows.Apply(&event.Event{Op: event.OpFree, Space: event.SpaceTensor, Time: t, Proc: proc, Addr: addr})
}

// Pool returns the memory of a call site from which tensors were handed out, nil for
// none, or where not every tensor is told.
func (l *Ledger) Pool(at *ledger.Site) *Pool {
	p := l.procs[at.Proc]
	if p == nil || l.Partial() {
		return nil
	}
	if pool := p.pools[at]; pool != nil && pool.Handed > 0 {
		return pool
	}
	return nil
}

// Pools yields what tensors were handed out of.
func (l *Ledger) Pools(yield func(event.Process, Pool) bool) {
	for id, p := range l.procs {
		for _, pool := range p.pools {
			p.settle(pool)
			if (pool.Handed > 0 || pool.Peak != 0) && !yield(id, *pool) {
				return
			}
		}
		for _, pool := range p.outside {
			p.settle(pool)
			if !yield(id, *pool) {
				return
			}
		}
	}
}

// Devices yields what the allocators of each process say, by its devices.
func (l *Ledger) Devices(yield func(event.Process, Device) bool) {
	for id, p := range l.procs {
		for _, d := range p.devices {
			if !yield(id, *d) {
				return
			}
		}
	}
}

// On returns what the allocators of a process say, by its devices.
func (l *Ledger) On(proc event.Process) map[int32]*Device {
	if p := l.procs[proc]; p != nil {
		return p.devices
	}
	return nil
}

// Seen tells whether there ever was a tensor: a trace without the layer has none.
func (l *Ledger) Seen() bool { return l.seen }

// Bytes returns what a process has in tensors.
func (l *Ledger) Bytes(proc event.Process) (sum int64) {
	for _, d := range l.On(proc) {
		sum += d.Bytes
	}
	return sum
}

// Release ends what proc, which has exited, held when it did.
func (l *Ledger) Release(proc event.Process) {
	l.Rows.Release(proc)
	if p := l.procs[proc]; p != nil && p.ended {
		p.begin()
	}
}

// Forget removes all that is known of proc.
func (l *Ledger) Forget(proc event.Process) {
	l.Rows.Forget(proc)
	if p := l.procs[proc]; p != nil {
		l.fates -= len(p.fates)
		l.pairs -= len(p.freed)
		delete(l.procs, proc)
	}
}
