package record

// record writes anything but an event.
func (e *encoder) record(r Record) {
	e.records++
	switch r := r.(type) {
	case *Trace:
		e.uint(entryTrace)
		e.trace(r)
	case *Stack:
		e.uint(entryStack)
		e.int(int64(r.ID - e.stackID))
		e.stackID = r.ID
		e.process(r.Process)
		e.uint(uint64(len(r.Frames)))
		for _, p := range r.Frames {
			e.placeRef(p.ID)
		}
	case *Name:
		e.uint(entryName)
		e.placeRef(r.Place.ID)
		e.bool(r.Final)
		e.location(r.Location, r.Place.Address)
	case *Process:
		e.uint(entryProcess)
		e.process(r.Process)
		e.bool(r.Target)
		e.string(r.Name)
		e.bool(r.FromStart)
		e.mapping(r.Program)
		e.uint(uint64(r.User))
	case *Reading:
		e.uint(entryReading)
		e.reading(r)
	case *Loss:
		e.uint(entryLoss)
		e.uint(uint64(len(r.Counters)))
		for _, c := range r.Counters {
			e.string(c.Name)
			e.string(c.Help)
			e.uint(c.Value)
		}
		e.texts(r.Notes)
	case *Note:
		e.uint(entryNote)
		e.string(r.Text)
	case *Moment:
		e.uint(entryMoment)
		e.moment(r.Time)
		e.uint(r.Slept)
		e.bool(r.Drained)
	case *Sweep:
		e.uint(entrySweep)
		e.bool(r.Drop)
	case *Reported:
		e.uint(entryReported)
	case *Tensors:
		e.uint(entryTensors)
		e.tensors(r)
	case *Cut:
		e.uint(entryCut)
		e.moment(r.Time)
	case *Steps:
		e.uint(entrySteps)
		e.process(r.Process)
		e.uint(uint64(len(r.Numbers)))
		for _, n := range r.Numbers {
			e.uint(n)
		}
		e.bool(r.More)
	}
}

func (e *encoder) trace(r *Trace) {
	e.string(r.Version)
	e.string(r.CommandLine)
	e.string(r.Target)
	e.string(r.StackMode)
	e.string(r.Driver)
	e.wall(r.Start)
	e.wall(r.Boot)
	e.bool(r.All)
	e.bool(r.NVML)
	e.bool(r.Physical)
	e.bool(r.Initial)
	e.int(int64(r.MaxLive))
	e.int(int64(r.Incidents))
	e.texts(r.APIs)
}

func (e *encoder) tensors(r *Tensors) {
	e.uint(r.Sample)
	e.uint(r.Min)
	e.moment(r.Time)
	e.uint(uint64(len(r.Allocators)))
	for i := range r.Allocators {
		a := &r.Allocators[i]
		e.process(a.Process)
		e.int(int64(a.Device))
		e.uint(a.Allocated)
		e.uint(a.Reserved)
		for _, n := range []Tally{a.Made, a.Freed, a.SmallMade, a.SmallFreed} {
			e.uint(n.Count)
			e.uint(n.Bytes)
		}
	}
}

func (e *encoder) texts(list []string) {
	e.uint(uint64(len(list)))
	for _, s := range list {
		e.string(s)
	}
}

func (e *encoder) reading(r *Reading) {
	e.moment(r.Time)
	e.uint(r.Time - r.Begin)
	e.uint(uint64(len(r.Devices)))
	for i := range r.Devices {
		d := &r.Devices[i]
		e.string(d.UUID)
		e.string(d.Label)
		e.string(d.Name)
		e.uint(uint64(d.GPU))
		e.bool(d.GPUKnown)
		e.int(int64(d.Instance))
		e.int(d.Total)
		e.int(d.Used)
		e.int(d.Free)
		e.bool(d.MemoryKnown)
		e.bool(d.Listed)
		e.uint(uint64(len(d.Processes)))
		for _, p := range d.Processes {
			e.int(int64(p.PID))
			e.string(p.Name)
			e.int(p.Bytes)
			e.bool(p.Known)
		}
	}
	e.uint(uint64(len(r.Uses)))
	for i := range r.Uses {
		u := &r.Uses[i]
		e.process(u.Process)
		e.uint(uint64(u.Device))
		e.int(u.Bytes)
		e.bool(u.Known)
		e.bool(u.Inferred)
	}
	e.uint(uint64(len(r.Ordinals)))
	for i := range r.Ordinals {
		o := &r.Ordinals[i]
		e.process(o.Process)
		e.int(int64(o.Ordinal))
		e.uint(uint64(o.Device))
	}
}
