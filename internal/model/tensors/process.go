package tensors

import (
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"

	"github.com/gpumemtrace/gpumemtrace/internal/keyed"
)

// A process is the state of one process: its tensors, and the memory that they lie in.
type process struct {
	l       *Ledger
	id      event.Process
	tensors map[uint64]tensor // by address
	memory  memory
	devices map[int32]*Device
	windows windows
	epoch   uint64 // counts peaks
	ended   bool
	last    []Segments // of a process that has ended: as they were then
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

// A Device is what one process's allocators report of a device. Bytes are those of
// tensors that were seen made and not freed.
type Device struct {
	Index int32 // CUDA ordinal inside the process
	Bytes int64
	// Before are bytes beyond those that are handed out too, as far as that is
	// known: from before the trace, or lost.
	Before   int64
	Reported bool // the allocators reported totals
	// Reserved is what the allocator holds.
	Reserved int64
}

// reset makes p empty.
func (p *process) reset() {
	returned := p.memory.returned
	p.tensors, p.devices = map[uint64]tensor{}, map[int32]*Device{}
	p.memory = newMemory(p)
	p.memory.returned = returned
}

// exit ends the process. Its sums stay, because what they count does not end.
func (p *process) exit() {
	if p.ended {
		return // its PID had another holder before its end was reported
	}
	p.ended = true
	p.last = p.segments()
	p.windows = nil
	p.l.fates.exit(p.id)
	if !p.l.Layout {
		p.memory.extents.Clear(false)
		p.tensors = nil
	}
}

// replaceImage ends what an image had that an exec replaced at a time. What is newer
// belongs to the new image, whose first events may have overtaken the exec; its segments
// end with the ledger of the driver layer.
func (p *process) replaceImage(at uint64) {
	for _, addr := range p.addresses() {
		if x := p.tensors[addr]; x.time <= at {
			p.end(addr, &x)
		}
	}
	p.windows.reset(at)
	for _, d := range p.devices {
		*d = Device{Index: d.Index, Bytes: d.Bytes}
	}
}

// alloc begins a tensor.
func (p *process) alloc(e *event.Event) {
	p.l.seen = true
	if row := p.l.rowOf(e, event.OpAlloc); e.Addr == 0 || !p.l.Rows.Accepts(row) || p.begin(e) {
		p.l.Rows.Apply(row) // which counts what cannot be
	}
}

// begin returns whether a tensor that can be counts.
func (p *process) begin(e *event.Event) bool {
	l := p.l
	if e.Size == 0 {
		return false // it is nothing
	}
	old, replaces := p.tensors[e.Addr]
	if replaces {
		if old.time > e.Time {
			return true // this one ended before the one that is there began
		}
		p.end(e.Addr, &old)
	} else if e.Bare || !l.Rows.Room(e.Proc) {
		l.loss.Add(lossLive, 1)
		return false
	}
	t := tensor{time: e.Time, size: e.Size, stack: e.Stack, thread: e.TID, device: e.Device}
	if why, ok := p.memory.split(&t, e.Addr); !ok {
		l.loss.Add(why, 1)
		if replaces {
			l.dropRow(e.Proc, e.Addr, e.Time)
		}
		return false
	}
	p.tensors[e.Addr] = t
	p.add(e.Addr, &t, 1)
	l.pieces.Add(t.piece(p.id, e.Addr))
	l.fates.addTensor(e)
	p.compareTotals(e)
	return true
}

// free ends a tensor.
func (p *process) free(e *event.Event) {
	row := p.l.rowOf(e, event.OpFree)
	if p.l.Rows.Accepts(row) {
		p.finish(e)
	}
	p.l.Rows.Apply(row)
}

func (p *process) finish(e *event.Event) {
	switch t, ok := p.tensors[e.Addr]; {
	case !ok:
		p.device(e.Device).Before -= int64(e.Size)
		p.memory.markHandedWithin(e.Addr, e.Addr+1)
	case t.time > e.Time: // one that was there before
	default:
		p.end(e.Addr, &t)
		p.l.fates.addEnd(&t, e, p.l.Rows)
		if e.Stack != 0 {
			p.l.freers.add(&t, e)
		}
	}
	p.compareTotals(e)
}

// compareTotals compares what was seen with the totals that the allocator reports.
func (p *process) compareTotals(e *event.Event) {
	if e.Handle == event.NoTotal {
		return
	}
	d := p.device(e.Device)
	d.Reserved = int64(e.Part)
	before := int64(e.Handle) - d.Bytes
	if d.Reported && before != d.Before {
		p.l.loss.Add(lossTotals, 1)
	}
	d.Before, d.Reported = before, true
}

// device returns the Device of an ordinal, made if need be.
func (p *process) device(index int32) *Device {
	d := keyed.At(p.devices, index)
	d.Index = index
	return d
}

func (p *process) end(addr uint64, t *tensor) {
	delete(p.tensors, addr)
	p.add(addr, t, -1)
	p.l.pieces.Add(t.piece(p.id, addr).end())
}

// add counts t, at addr, or with sign -1 its end.
func (p *process) add(addr uint64, t *tensor, sign int64) {
	p.device(t.device).Bytes += sign * int64(t.size)
	p.memory.add(addr, t.first, t.device, sign)
	for _, x := range t.more {
		p.memory.add(addr, x, t.device, sign)
	}
}
