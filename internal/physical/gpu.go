package physical

import (
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
)

// maxTold bounds the device instances of a process. The kernel driver has 32.
const maxTold = 64

// open returns the index of a device that the process opened.
func (l *Ledger) open(p *process, e *event.Event) int32 {
	id, known := p.told[e.Addr]
	client := e.Handle >> 32
	i := slices.IndexFunc(p.gpus, func(g GPU) bool { return known && g.Known && g.ID == id && g.opened == client })
	if i < 0 {
		i = l.append(p, GPU{ID: id, Known: known, opened: client})
	}
	return int32(i)
}

// deviceOf returns the index of the device that a new object is on: that above it
// in the tree, or one that was opened before the trace.
func (l *Ledger) deviceOf(p *process, o *object, e *event.Event) int32 {
	if i := o.device(); i != none {
		return i
	}
	i := slices.IndexFunc(p.gpus, func(g GPU) bool { return !g.Known && g.opened == e.Part })
	if i < 0 {
		i = l.append(p, GPU{opened: e.Part})
	}
	return int32(i)
}

// maxGPUs bounds the devices of a process. Memory of others is on none that is
// known.
const maxGPUs = 256

func (l *Ledger) append(p *process, g GPU) int {
	if len(p.gpus) >= maxGPUs {
		return int(none)
	}
	g.Instance, g.Ordinal = -1, event.NoDevice
	l.asking++
	p.gpus = append(p.gpus, g)
	return len(p.gpus) - 1
}

// Asks tells whether Backs may be of use.
func (l *Ledger) Asks() bool { return l.asking > 0 }

// Backs says that the memory that a thread of proc took last is on the device that
// the process's CUDA calls ordinal.
func (l *Ledger) Backs(proc event.Process, thread uint32, ordinal int32) {
	p := l.procs[proc]
	if p == nil {
		return
	}
	i, ok := p.took[thread]
	if !ok {
		return
	}
	delete(p.took, thread)
	if g := &p.gpus[i]; ordinal != event.NoDevice && g.Ordinal == event.NoDevice {
		l.answer(g)
		g.Ordinal = ordinal
	}
}

// answer says that the ordinal of g is asked for no longer.
func (l *Ledger) answer(g *GPU) {
	if g.Ordinal == event.NoDevice {
		l.asking--
	}
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
