// Package physical keeps what NVIDIA's kernel driver has handed out to each
// process: every byte of what the driver's own figures say of it (NVML), by the
// call that made the driver hand it out.
//
// The kernel driver's objects make a tree under each client of it. A device is
// below its client, memory below a device, and what ends takes all that is below
// it along. What counts is what the driver counts for a process
// (_gpuCollectMemInfo of open-gpu-kernel-modules): memory with its owner, and
// with who shares it once the owner has let go and nobody else has it.
//
// Like package ledger, on which it rests, it is pure and never fails.
package physical

import (
	"github.com/gpumemtrace/gpumemtrace/internal/event"
	"github.com/gpumemtrace/gpumemtrace/internal/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/loss"
)

// maxObjects bounds the driver's objects of all processes: memory in pieces of
// 2 MiB on eight GPUs of 141 GB is half a million.
const maxObjects = 4 << 20

// maxProcesses bounds the processes, ended ones included.
const maxProcesses = 1 << 16

// A Ledger holds the objects of all traced processes. What of them is memory has
// rows in Rows.
type Ledger struct {
	// Rows are of class driver (host, for system memory). A site's Device is an
	// index into GPUs, its API the function that the memory was handed out in.
	Rows *ledger.Ledger

	objects map[objectID]*object
	procs   map[event.Process]*process
	clients map[uint64]event.Process // who made a client
	rows    uint64                   // address of the latest row
	waiting int                      // ends that are held back
	asking  int                      // GPUs whose ordinal is not known
	loss    *loss.Set
}

// An objectID is one object: what a process calls it.
type objectID struct {
	proc event.Process
	name uint64 // client << 32 | object
}

// An object is a node of a process's tree.
type object struct {
	objectID
	time     uint64 // of the call that made it
	parent   *object
	children map[*object]struct{}
	gpu      int32        // of a device: index into process.gpus; else of none, -1
	fd       uint64       // of a client: the descriptor that it was made on
	memory   *memory      // nil for none
	rows     []uint64     // addresses in Rows of what counts with this object
	share    *event.Event // the call that made it share another's memory
}

type process struct {
	roots   map[*object]struct{} // objects whose parent is not known
	gpus    []GPU
	told    map[uint64]uint32 // device instances: which GPU
	freed   map[uint32]freed  // by thread
	took    map[uint32]int32  // by thread: the device of its latest memory, while its ordinal is asked for
	changed uint64
}

// none is the device of what is on none, or on one that is not known.
const none = event.NoDevice

// A GPU is one device that a process had the kernel driver open.
type GPU struct {
	// ID is the kernel driver's number of the GPU, if Known: PCI domain << 16 |
	// bus << 8 | device (gpuGenerate32BitId).
	ID    uint32
	Known bool
	// Instance of the GPU (MIG), or -1.
	Instance int32
	// Ordinal is what the process's CUDA calls it, event.NoDevice while that is
	// not known.
	Ordinal int32

	opened uint64 // the client that opened it, or the device's name if that was not seen
}

var lossCauses loss.Causes

var (
	lossObjects   = lossCauses.Add("driver_objects_full", "objects of the kernel driver's not kept because there were too many: its memory is not in the total")
	lossProcesses = lossCauses.Add("driver_processes_full", "calls of the kernel driver not counted because there were too many processes")
	lossShared    = lossCauses.Add("driver_shares_unknown", "shares of memory whose owner is not traced: what is left of it when the owner frees it is not in the total")
)

// New returns an empty Ledger.
func New(opt ledger.Options) *Ledger {
	return &Ledger{
		Rows: ledger.New(opt), objects: map[objectID]*object{}, procs: map[event.Process]*process{},
		clients: map[uint64]event.Process{}, loss: loss.New(lossCauses),
	}
}

// Loss returns every cause of loss of the layer.
func (l *Ledger) Loss() []loss.Counter {
	out := l.loss.Counters()
	for _, c := range l.Rows.Loss() {
		c.Name = "driver_" + c.Name
		out = append(out, c)
	}
	return out
}

// GPUs returns the devices of a process, by Site.Device.
func (l *Ledger) GPUs(proc event.Process) []GPU {
	if p := l.procs[proc]; p != nil {
		return p.gpus
	}
	return nil
}

// Held returns the bytes that a process has on each of its GPUs.
func (l *Ledger) Held(proc event.Process) []int64 {
	p := l.procs[proc]
	if p == nil {
		return nil
	}
	out := make([]int64, len(p.gpus))
	for h := range l.Rows.Holdings(proc) {
		if h.Device >= 0 && int(h.Device) < len(out) {
			out[h.Device] = h.Bytes
		}
	}
	return out
}

// Seen tells whether any call of a process was seen.
func (l *Ledger) Seen(proc event.Process) bool { return l.procs[proc] != nil }

// Changed returns when a process's memory changed last, 0 for never: a reading
// that began before may be of before.
func (l *Ledger) Changed(proc event.Process) uint64 {
	if p := l.procs[proc]; p != nil {
		return p.changed
	}
	return 0
}

// Apply takes one event into account. function is the name of the function that
// it was made in (Event.Outer), "" for none that is probed.
func (l *Ledger) Apply(e *event.Event, function string) {
	switch e.Op {
	case event.OpFork:
		return
	case event.OpExec, event.OpExit:
		l.end(e)
		return
	}
	p := l.procs[e.Proc]
	if p == nil && len(l.procs) >= maxProcesses {
		l.loss.Add(lossProcesses, 1)
		return
	} else if p == nil {
		p = &process{roots: map[*object]struct{}{}, told: map[uint64]uint32{}, freed: map[uint32]freed{}, took: map[uint32]int32{}}
		l.procs[e.Proc] = p
	}
	if e.Op == event.OpObjectMemory && e.Kind == event.KindDriver && e.Result == event.Success && l.grow(p, e) {
		return
	}
	l.settle(p, e.TID)
	if e.Result != event.Success {
		if e.Op == event.OpObjectMemory {
			l.Rows.Apply(l.row(e, Cause(function), event.NoDevice, e.Size))
		}
		return
	}
	switch e.Op {
	case event.OpGPU:
		if len(p.told) < maxTold {
			p.told[e.Addr] = uint32(e.Part)
		}
	case event.OpClient:
		if o := l.add(p, e); o != nil {
			o.fd = e.Addr
			if _, taken := l.clients[e.Handle>>32]; !taken {
				l.clients[e.Handle>>32] = e.Proc
			}
		}
	case event.OpObject:
		l.add(p, e)
	case event.OpObjectDevice:
		if o := l.add(p, e); o != nil {
			o.gpu = l.open(p, e)
		}
	case event.OpObjectInstance:
		if o := l.add(p, e); o != nil {
			if i := o.device(); i >= 0 {
				p.gpus[i].Instance = int32(e.Addr)
			}
		}
	case event.OpObjectMemory:
		l.take(p, e, function)
	case event.OpObjectShare:
		l.share(p, e)
	case event.OpObjectFree:
		if o := l.objects[objectID{e.Proc, e.Handle}]; o != nil && o.time <= e.Time && !l.wait(p, o, e, function) {
			l.free(o, e.Time)
		}
	case event.OpDescriptorClose:
		for o := range p.roots {
			if o.fd == e.Addr && o.client() && o.time <= e.Time {
				l.free(o, e.Time)
			}
		}
	}
}

// add puts a new object under its parent, nil if there is no room. One that has its
// name has ended, though its end is told later.
func (l *Ledger) add(p *process, e *event.Event) *object {
	id := objectID{e.Proc, e.Handle}
	if old := l.objects[id]; old != nil {
		if old.time > e.Time {
			return nil
		}
		l.free(old, e.Time)
	}
	if len(l.objects) >= maxObjects {
		l.loss.Add(lossObjects, 1)
		return nil
	}
	o := &object{objectID: id, time: e.Time, gpu: none, parent: l.objects[objectID{e.Proc, e.Part}]}
	if o.parent == nil {
		p.roots[o] = struct{}{}
	} else if o.parent.children == nil {
		o.parent.children = map[*object]struct{}{o: {}}
	} else {
		o.parent.children[o] = struct{}{}
	}
	l.objects[id] = o
	return o
}

// free ends an object and all that is under it.
func (l *Ledger) free(o *object, at uint64) {
	for len(o.children) > 0 {
		for child := range o.children {
			l.free(child, at)
		}
	}
	if o.parent != nil {
		delete(o.parent.children, o)
	} else if p := l.procs[o.proc]; p != nil {
		delete(p.roots, o)
	}
	delete(l.objects, o.objectID)
	if client := o.name >> 32; o.client() && l.clients[client] == o.proc {
		delete(l.clients, client)
	}
	if o.memory != nil {
		l.release(o, at)
	}
}

func (o *object) client() bool { return o.name>>32 == o.name&0xffffffff }

// abandon leaves what an object and all under it hold to Rows, which has seen the
// process end.
func (o *object) abandon() {
	o.rows = nil
	for child := range o.children {
		child.abandon()
	}
}

// end follows the end of a process or of its image: its clients end with it. What
// an ended process held stays in Rows, as its last state.
func (l *Ledger) end(e *event.Event) {
	l.Rows.Apply(e)
	p := l.procs[e.Proc]
	if p == nil {
		return
	}
	l.waiting -= len(p.freed)
	clear(p.freed)
	for o := range p.roots {
		if o.time <= e.Time {
			o.abandon()
			l.free(o, e.Time)
		}
	}
	p.changed = max(p.changed, e.Time)
}

// Forget removes all that is known of proc.
func (l *Ledger) Forget(proc event.Process) {
	l.Rows.Forget(proc)
	if p := l.procs[proc]; p != nil {
		for o := range p.roots {
			o.abandon()
			l.free(o, 0)
		}
		l.waiting -= len(p.freed)
		for i := range p.gpus {
			l.answer(&p.gpus[i])
		}
		delete(l.procs, proc)
	}
}
