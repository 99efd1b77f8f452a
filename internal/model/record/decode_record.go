package record

import (
	"math"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// record reads anything but an event.
func (d *decoder) record(entry uint64) Record {
	switch entry {
	case entryTrace:
		return d.trace()
	case entryStack:
		d.stackID += uint64(d.int())
		r := &Stack{ID: d.stackID, Process: d.process()}
		if n := min(d.count(1), maxFrames+1); n > maxFrames {
			d.fail()
		} else if n > 0 {
			r.Frames = make([]*Place, n)
		}
		for i := range r.Frames {
			if id := d.placeRef(); !d.bad {
				r.Frames[i] = d.known.frame(id)
			}
		}
		return r
	case entryName:
		id := d.placeRef()
		r := &Name{Final: d.bool()}
		if d.bad {
			return nil
		}
		if r.Place = d.known.place(id); r.Place == nil {
			r.Place = &Place{ID: id}
		}
		r.Location = d.location(r.Place.Address)
		return r
	case entryProcess:
		r := &Process{Process: d.process(), Target: d.bool(), Name: d.string(), FromStart: d.bool(), Program: d.mapping()}
		if d.users {
			r.User = User(d.upTo(1 << 32))
		}
		return r
	case entryReading:
		return d.reading()
	case entryLoss:
		r := &Loss{}
		if n := d.count(3); n > 0 {
			r.Counters = make([]loss.Counter, n)
		}
		for i := range r.Counters {
			r.Counters[i] = loss.Counter{Name: d.string(), Help: d.string(), Value: d.uint()}
		}
		r.Notes = d.texts()
		return r
	case entryNote:
		return &Note{Text: d.string()}
	case entryMoment:
		return &Moment{Time: d.moment(), Slept: d.uint(), Drained: d.bool()}
	case entrySweep:
		return &Sweep{Drop: d.bool()}
	case entryReported:
		return &Reported{}
	case entryTensors:
		return d.tensors()
	case entryCut:
		return &Cut{Time: d.moment()}
	case entrySteps:
		r := &Steps{Process: d.process()}
		if n := min(d.count(1), MaxNumbers+1); n > MaxNumbers {
			d.fail()
		} else if n > 0 {
			r.Numbers = make([]uint64, n)
		}
		for i := range r.Numbers {
			r.Numbers[i] = d.uint()
		}
		r.More = d.bool()
		return r
	}
	d.fail()
	return nil
}

func (d *decoder) trace() *Trace {
	return &Trace{
		Version:     d.string(),
		CommandLine: d.string(),
		Target:      d.string(),
		StackMode:   d.string(),
		Driver:      d.string(),
		Start:       d.wall(),
		Boot:        d.wall(),
		All:         d.bool(),
		NVML:        d.bool(),
		Physical:    d.bool(),
		Initial:     d.bool(),
		MaxLive:     int(d.between(math.MinInt, math.MaxInt)),
		Incidents:   int(d.between(math.MinInt, math.MaxInt)),
		APIs:        d.texts(),
	}
}

func (d *decoder) tensors() *Tensors {
	r := &Tensors{Sample: d.uint(), Min: d.uint(), Time: d.moment()}
	if n := d.count(13); n > 0 {
		r.Allocators = make([]Allocator, n)
	}
	tally := func() Tally { return Tally{Count: d.uint(), Bytes: d.uint()} }
	for i := range r.Allocators {
		r.Allocators[i] = Allocator{
			Process: d.process(), Device: int32(d.between(math.MinInt32, math.MaxInt32)),
			Allocated: d.uint(), Reserved: d.uint(),
			Made: tally(), Freed: tally(), SmallMade: tally(), SmallFreed: tally(),
		}
	}
	return r
}

func (d *decoder) reading() *Reading {
	r := &Reading{Time: d.moment()}
	r.Begin = r.Time - d.uint()
	if n := d.count(12); n > 0 {
		r.Devices = make([]Device, n)
	}
	for i := range r.Devices {
		v := &r.Devices[i]
		v.UUID, v.Label, v.Name = d.string(), d.string(), d.string()
		v.GPU, v.GPUKnown = uint32(d.upTo(math.MaxUint32)), d.bool()
		v.Instance = int32(d.between(math.MinInt32, math.MaxInt32))
		v.Total, v.Used, v.Free = d.int(), d.int(), d.int()
		v.MemoryKnown, v.Listed = d.bool(), d.bool()
		if n := d.count(4); n > 0 {
			v.Processes = make([]snapshot.GPUProcess, n)
		}
		for j := range v.Processes {
			v.Processes[j] = snapshot.GPUProcess{PID: int(d.between(math.MinInt, math.MaxInt)), Name: d.string(), Bytes: d.int(), Known: d.bool()}
		}
	}
	if n := d.count(6); n > 0 {
		r.Uses = make([]Use, n)
	}
	for i := range r.Uses {
		r.Uses[i] = Use{Process: d.process(), Device: d.device(r), Bytes: d.int(), Known: d.bool(), Inferred: d.bool()}
	}
	if n := d.count(4); n > 0 {
		r.Ordinals = make([]Ordinal, n)
	}
	for i := range r.Ordinals {
		r.Ordinals[i] = Ordinal{Process: d.process(), Ordinal: int32(d.between(math.MinInt32, math.MaxInt32)), Device: d.device(r)}
	}
	return r
}

// device reads an index into r's devices.
func (d *decoder) device(r *Reading) int {
	if len(r.Devices) == 0 {
		d.fail()
		return 0
	}
	return int(d.upTo(uint64(len(r.Devices) - 1)))
}
