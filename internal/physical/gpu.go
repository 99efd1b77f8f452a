package physical

import (
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
)

// maxTold bounds the device instances of a process. The kernel driver has 32.
const maxTold = 64

// open returns the index of a device that the process opened.
func (p *process) open(e *event.Event) int32 {
	id, known := p.told[e.Addr]
	client := e.Handle >> 32
	i := slices.IndexFunc(p.gpus, func(g GPU) bool { return known && g.Known && g.ID == id && g.opened == client })
	if i < 0 {
		i = p.append(GPU{ID: id, Known: known, Instance: -1, Ordinal: e.Device, opened: client})
	}
	return int32(i)
}

// deviceOf returns the index of the device that a new object is on: that above it
// in the tree, or one that was opened before the trace.
func (p *process) deviceOf(o *object, e *event.Event) int32 {
	if i := o.device(); i != none {
		return i
	}
	i := slices.IndexFunc(p.gpus, func(g GPU) bool { return !g.Known && g.opened == e.Part })
	if i < 0 {
		i = p.append(GPU{Instance: -1, Ordinal: event.NoDevice, opened: e.Part})
	}
	if i >= 0 && p.gpus[i].Ordinal == event.NoDevice {
		p.gpus[i].Ordinal = e.Device
	}
	return int32(i)
}

// maxGPUs bounds the devices of a process. Memory of others is on none that is
// known.
const maxGPUs = 256

func (p *process) append(g GPU) int {
	if len(p.gpus) >= maxGPUs {
		return int(none)
	}
	p.gpus = append(p.gpus, g)
	return len(p.gpus) - 1
}

// device returns the index of the device above an object.
func (o *object) device() int32 {
	for ; o != nil; o = o.parent {
		if o.gpu != none {
			return o.gpu
		}
	}
	return none
}
