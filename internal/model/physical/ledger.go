// Package physical keeps what NVIDIA's kernel driver has handed out to each process, by the
// call that made the driver hand it out. The invariant: it adds up to the driver's own
// figure for the process (NVML), to the byte.
//
// The kernel driver's objects form a tree under each client. A device is below its client,
// memory below a device, and the end of an object ends all objects below it. Memory counts
// as the driver counts it for a process (_gpuCollectMemInfo of open-gpu-kernel-modules):
// with its owner, and after the end of that with one of those that share it.
//
// Like package ledger, on which it rests, it is pure and never fails.
package physical

import (
	"maps"
	"math"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

const (
	// MaxObjects bounds the driver's objects of all processes: memory in pieces
	// of 2 MiB on eight GPUs of 141 GB is half a million.
	MaxObjects = 1 << 20
	// maxProcesses bounds the processes, ended ones included.
	maxProcesses = 1 << 16
)

// A Ledger has the objects of all traced processes. Those that are memory have rows in
// Rows.
type Ledger struct {
	// Rows are of class driver (host, for system memory). A site's Device is an
	// index into GPUs, its API the function that the memory was handed out in.
	Rows *ledger.Ledger
	// OnInherit, if set, is called with a process with which memory begins to count because
	// its owner freed it.
	OnInherit func(event.Process)

	objects map[objectID]*object
	exports map[uint64]*object // by place in a file
	max     int                // objects
	held    int                // of them
	procs   map[event.Process]*process
	clients map[uint64]map[event.Process]bool // the processes that use a client, by its name
	order   uint64                            // of the latest object
	rows    uint64                            // address of the latest row
	loss    *loss.Set
	scratch []*object   // of free
	event   event.Event // the latest for Rows, which does not keep it
}

type process struct {
	id          event.Process
	objects     int
	root        object
	descriptors map[uint64]*object
	gpus        []GPU
	instances   map[uint64]uint32   // device instances: which GPU
	freed       map[uint32]freed    // by thread
	latest      map[uint32]*memory  // by thread: its latest memory, until the allocation that it is for
	backing     map[address]*memory // of live memory: the allocation that it is for
	endings     map[uint32]*ending  // by thread
	buried      map[uint64]uint64   // names of objects: when the latest that had it ended
	parked      map[uint32]parked   // by number of an object
	suspended   bool                // a client ended in no probed function, and no memory came since
	exec        uint64              // time of its last exec, 0 for none
	seen        bool                // it called the kernel driver
	exited      bool
	changed     uint64
}

var lossCauses loss.Causes

var (
	lossObjects   = lossCauses.Add("driver_objects_full", "objects of the kernel driver that were not kept because there were too many: their memory is not in the total")
	lossInvalid   = lossCauses.Add("driver_calls_invalid", "calls of the kernel driver that cannot have happened")
	lossGPUs      = lossCauses.Add("driver_gpus_full", "devices of a process that are not kept apart because there were too many: their memory is shown on no known GPU")
	lossProcesses = lossCauses.Add("driver_callers_full", "calls of the kernel driver not counted because there were too many processes")
	lossShared    = lossCauses.Add("driver_shares_unknown", "shares of memory whose owner is not traced, not known, or of another user, and all but the first object of an export to a file: once the owner frees the memory, it is not in the total")
)

// New returns an empty Ledger.
func New(opt ledger.Options) *Ledger { return newLedger(opt, MaxObjects) }

func newLedger(opt ledger.Options, objects int) *Ledger {
	return &Ledger{
		Rows: ledger.New(opt), objects: map[objectID]*object{}, exports: map[uint64]*object{}, procs: map[event.Process]*process{},
		clients: map[uint64]map[event.Process]bool{}, max: objects, loss: loss.New(lossCauses),
	}
}

// Loss returns every cause of loss of the layer.
func (l *Ledger) Loss() []loss.Counter { return l.Rows.LossOf(l.loss, "driver_") }

// unknown is the state of a process that is not known.
var unknown process

// lookup returns the state of a process, to be read.
func (l *Ledger) lookup(proc event.Process) *process {
	if p := l.procs[proc]; p != nil {
		return p
	}
	return &unknown
}

// GPUs returns the devices of a process, by Site.Device.
func (l *Ledger) GPUs(proc event.Process) []GPU { return l.lookup(proc).gpus }

// BytesByGPU returns the bytes that a process has on each of its GPUs.
func (l *Ledger) BytesByGPU(proc event.Process) (out []int64) {
	for _, g := range l.lookup(proc).gpus {
		out = append(out, g.bytes)
	}
	return out
}

// Seen returns whether any call of a process was seen.
func (l *Ledger) Seen(proc event.Process) bool { return l.lookup(proc).seen }

// Changed returns when a process's memory changed last, 0 for never: a reading
// that began before may be of before.
func (l *Ledger) Changed(proc event.Process) uint64 { return l.lookup(proc).changed }

// Apply applies one event. function is the name of the function that
// it was made in (Event.Outer), "" for none that is probed. It does not keep e.
func (l *Ledger) Apply(e *event.Event, function string) {
	switch e.Op {
	case event.OpFork:
		return // a child has none of its parent's clients
	case event.OpExec, event.OpExit:
		l.end(e)
		return
	}
	p := l.process(e.Proc)
	if p == nil {
		return
	}
	p.seen = true
	if e.Result != event.Success || p.exited || e.Time <= p.exec {
		if e.Op == event.OpObjectMemory {
			l.countOnly(e, &row{size: e.Size, stack: e.Stack, kind: kindOf(e, function), outer: e.Outer, device: none, bare: e.Bare})
		}
		return
	}
	switch e.Op {
	case event.OpGPU:
		l.learnGPU(p, e)
	case event.OpClient, event.OpObject:
		l.add(p, e)
	case event.OpObjectDevice:
		if o := l.add(p, e); o != nil {
			l.open(p, o)
		}
	case event.OpObjectInstance:
		if o := l.add(p, e); o != nil {
			l.narrow(p, o)
		}
	case event.OpObjectMemory:
		l.allocate(p, e, function)
	case event.OpObjectShare, event.OpObjectImport:
		l.share(p, e)
	case event.OpObjectExport:
		l.export(p, e)
	case event.OpObjectFree:
		o := l.objects[objectID{e.Proc, e.Handle}]
		if o != nil && o.op != event.OpNone && o.time > e.Time {
			break
		}
		l.noteEnding(p, o, e, function)
		if o == nil {
			p.rememberUnseen(e, function)
		} else {
			if function == "" {
				l.park(p, o)
			}
			p.rememberFreed(o, e, function)
			l.free(e.Time, false, o)
		}
	case event.OpDescriptorClose:
		p.changed = max(p.changed, e.Time)
		if d := p.descriptors[e.Addr]; d != nil {
			l.free(e.Time, false, d.before(e.Time)...)
		}
	}
}

// process returns the state of id, made if need be, or nil when there is no room.
func (l *Ledger) process(id event.Process) *process {
	p := l.procs[id]
	if p == nil && len(l.procs) >= maxProcesses {
		l.loss.Add(lossProcesses, 1)
	} else if p == nil {
		p = &process{id: id, descriptors: map[uint64]*object{}, instances: map[uint64]uint32{}, backing: map[address]*memory{}, buried: map[uint64]uint64{},
			freed: map[uint32]freed{}, latest: map[uint32]*memory{}, endings: map[uint32]*ending{}, parked: map[uint32]parked{}}
		l.procs[id] = p
	}
	return p
}

// ObjectCount returns how many objects all processes have.
func (l *Ledger) ObjectCount() int { return l.held }

// Objects yields how many objects each living process has, in no order.
func (l *Ledger) Objects(yield func(event.Process, int) bool) {
	for id, p := range l.procs {
		if !p.exited && !yield(id, p.objects) {
			return
		}
	}
}

// count changes how many objects a process has.
func (l *Ledger) count(proc event.Process, n int) {
	l.procs[proc].objects += n
	l.held += n
}

// end follows the end of a process or of its image: its clients end with it. What
// an ended process held stays in Rows, as its last state.
func (l *Ledger) end(e *event.Event) {
	p := l.procs[e.Proc]
	if p == nil && e.Op == event.OpExec {
		p = l.process(e.Proc) // calls of the image before may be reported later
	}
	if p == nil || p.exited {
		l.Rows.Apply(e)
		return
	}
	if e.Op == event.OpExit {
		l.Rows.Apply(e)
		l.leave(p, e.Time)
		p.exited = true
		return
	}
	l.free(e.Time, false, p.root.before(e.Time)...)
	l.Rows.Apply(e)
	p.clearThreads()
	for i := range p.gpus {
		p.gpus[i].Ordinal = event.NoDevice
	}
	p.exec = max(p.exec, e.Time)
	p.changed = max(p.changed, e.Time)
}

// leave ends all objects of p, and leaves what they hold to Rows.
func (l *Ledger) leave(p *process, at uint64) {
	l.free(at, true, p.root.before(math.MaxUint64)...)
	p.clearThreads()
	p.changed = max(p.changed, at)
}

func (p *process) clearThreads() {
	clear(p.freed)
	clear(p.latest)
	clear(p.endings)
	clear(p.parked)
}

// room returns whether there is room for one more thread in a table, after those that are
// stale went for it.
func room[T any](threads map[uint32]T, stale func(T) bool) bool {
	if len(threads) >= maxThreads {
		maps.DeleteFunc(threads, func(_ uint32, x T) bool { return stale(x) })
	}
	return len(threads) < maxThreads
}

// Forget removes all that is known of proc.
func (l *Ledger) Forget(proc event.Process) {
	l.Rows.Forget(proc)
	if p := l.procs[proc]; p != nil {
		l.leave(p, p.changed)
		delete(l.procs, proc)
	}
}
