package physical

import (
	"math"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// none is the device of memory that is on no device, or on one that is not known.
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

	opened uint64 // the device instance, or the device's name if that was not seen
	bytes  int64  // in use
}

const (
	// maxInstances bounds the device instances of a process. The kernel driver has 32.
	maxInstances = 64
	// maxGPUs bounds the devices of a process. Memory on others is on no known one.
	maxGPUs = 256
)

// gpu returns the index of a device of p, made if need be.
func (l *Ledger) gpu(p *process, g GPU) int32 {
	i := slices.IndexFunc(p.gpus, func(x GPU) bool {
		return x.Known == g.Known && x.ID == g.ID && x.Instance == g.Instance && (g.Known || x.opened == g.opened)
	})
	switch {
	case i >= 0:
		return int32(i)
	case len(p.gpus) >= maxGPUs:
		l.loss.Add(lossGPUs, 1)
		return none
	}
	g.Ordinal = event.NoDevice
	p.gpus = append(p.gpus, g)
	return int32(len(p.gpus) - 1)
}

// open makes an object a device.
func (l *Ledger) open(p *process, o *object) {
	id, known := p.instances[o.number]
	o.device = o
	o.gpu = l.gpu(p, GPU{ID: id, Known: known, Instance: -1, opened: o.number})
}

// narrow puts objects that will come below o's device on an instance of the GPU.
func (l *Ledger) narrow(p *process, o *object) {
	if i := l.deviceOf(p, o); i != none && o.number <= math.MaxInt32 {
		g := p.gpus[i]
		g.Instance, g.bytes = int32(o.number), 0
		o.device.gpu = l.gpu(p, g)
	}
}

// deviceOf returns the index of the device that an object is on, none if it is not known.
func (l *Ledger) deviceOf(p *process, o *object) int32 {
	d := o.device
	if d == nil {
		return none
	}
	if d.gpu == none && d.op == event.OpNone { // opened before the trace
		d.gpu = l.gpu(p, GPU{Instance: -1, opened: d.name})
	}
	return d.gpu
}

// learnGPU applies what a process learns of its GPUs.
func (l *Ledger) learnGPU(p *process, e *event.Event) {
	if e.Handle != 0 {
		if o := l.objects[objectID{e.Proc, e.Handle}]; o != nil {
			p.setOrdinal(l.deviceOf(p, o), e.Device)
		}
		return
	}
	if _, known := p.instances[e.Addr]; !known && len(p.instances) >= maxInstances {
		return
	}
	p.instances[e.Addr] = uint32(e.Part)
	for i := range p.gpus {
		if g := &p.gpus[i]; !g.Known && g.opened == e.Addr {
			g.ID, g.Known = uint32(e.Part), true
		}
	}
}

// setLatest remembers a thread's latest memory, if an allocation that it is for follows,
// on the same device.
func (p *process) setLatest(m *memory, e *event.Event, function string) {
	delete(p.latest, e.TID)
	if m.rows[0].device != none && e.TID != 0 && causeOf(function).placed && len(p.latest) < maxThreads {
		p.latest[e.TID] = m
	}
}

// setOrdinal sets the ordinal by which a process's CUDA calls one of its devices. Only an
// exec changes it.
func (p *process) setOrdinal(gpu, ordinal int32) {
	if gpu != none && ordinal != event.NoDevice && p.gpus[gpu].Ordinal == event.NoDevice {
		p.gpus[gpu].Ordinal = ordinal
	}
}
