package record

import (
	"math"
	"reflect"
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// A codec visits the fields of a record one after the other, to write them or to read
// them: what an entry holds is described once. Either e or d is set. A record that is
// written is not changed: others may be reading it.
type codec struct {
	e *encoder
	d *decoder
}

// recordTypes are the types of records by entry.
var recordTypes = [...]reflect.Type{
	entryTrace:    reflect.TypeFor[Trace](),
	entryStack:    reflect.TypeFor[Stack](),
	entryName:     reflect.TypeFor[Name](),
	entryProcess:  reflect.TypeFor[Process](),
	entryReading:  reflect.TypeFor[Reading](),
	entryLoss:     reflect.TypeFor[Loss](),
	entryNote:     reflect.TypeFor[Note](),
	entryMoment:   reflect.TypeFor[Moment](),
	entrySweep:    reflect.TypeFor[Sweep](),
	entryReported: reflect.TypeFor[Reported](),
	entryCut:      reflect.TypeFor[Cut](),
	entrySteps:    reflect.TypeFor[Steps](),
	entryTensors:  reflect.TypeFor[Tensors](),
	entryHeap:     reflect.TypeFor[Heap](),
}

// record writes anything but an event.
func (e *encoder) record(r Record) {
	e.records++
	e.uint(uint64(slices.Index(recordTypes[:], reflect.TypeOf(r).Elem())))
	codec{e: e}.record(r)
}

// record reads anything but an event.
func (d *decoder) record(entry uint64) Record {
	if entry >= uint64(len(recordTypes)) || recordTypes[entry] == nil {
		d.fail()
		return nil
	}
	if entry == entryHeap {
		return d.heap()
	}
	r := reflect.New(recordTypes[entry]).Interface().(Record)
	codec{d: d}.record(r)
	return r
}

// record visits the fields of anything but an event.
func (c codec) record(r Record) {
	switch r := r.(type) {
	case *Trace:
		c.string(&r.Version, &r.CommandLine, &r.Target, &r.StackMode, &r.Driver)
		c.wall(&r.Start, &r.Boot)
		c.bool(&r.All, &r.NVML, &r.Physical, &r.Initial)
		signed(c, &r.MaxLive, &r.Incidents)
		c.texts(&r.APIs)
	case *Stack:
		c.stack(&r.ID)
		c.process(&r.Process)
		list(c, &r.Frames, 1, maxFrames, c.frame)
		list(c, &r.Modules, 1, maxStackModules, func(x *uint64) { c.uint(x) })
	case *Name:
		c.place(r)
		c.location(&r.Location, r.Place.Address)
	case *Process:
		c.process(&r.Process)
		c.bool(&r.Target)
		c.string(&r.Name)
		c.bool(&r.FromStart)
		c.mapping(&r.Program)
		upTo(c, &r.User, 1<<32)
		c.string(r.Who.Fields()...)
	case *Reading:
		c.reading(r)
	case *Loss:
		list(c, &r.Counters, 3, 0, func(x *loss.Counter) {
			c.string(&x.Name, &x.Help)
			c.uint(&x.Value)
		})
		c.texts(&r.Notes)
	case *Note:
		c.string(&r.Text)
	case *Moment:
		c.moment(&r.Time)
		c.uint(&r.Slept)
		c.bool(&r.Drained)
	case *Sweep:
		c.bool(&r.Drop)
	case *Cut:
		c.moment(&r.Time)
	case *Tensors:
		c.moment(&r.Time)
		c.uint(&r.Window.Length, &r.Window.Every)
		c.bool(&r.Window.Open)
	case *Heap: // read by decoder.record
		c.e.heap(r)
	case *Steps:
		c.process(&r.Process)
		list(c, &r.Numbers, 1, MaxNumbers, func(x *uint64) { c.uint(x) })
		c.bool(&r.More)
	}
}

func (c codec) reading(r *Reading) {
	c.moment(&r.Time)
	if c.d == nil {
		c.e.uint(r.Time - r.Begin)
	} else {
		r.Begin = r.Time - c.d.uint()
	}
	list(c, &r.Devices, 12, 0, func(x *Device) {
		c.string(&x.UUID, &x.Label, &x.Name)
		upTo(c, &x.GPU, math.MaxUint32)
		c.bool(&x.GPUKnown)
		signed(c, &x.Instance)
		c.int(&x.Total, &x.Used, &x.Free)
		c.bool(&x.MemoryKnown, &x.Listed)
		list(c, &x.Processes, 4, 0, func(p *snapshot.GPUProcess) {
			signed(c, &p.PID)
			c.string(&p.Name)
			c.int(&p.Bytes)
			c.bool(&p.Known)
		})
	})
	list(c, &r.Uses, 6, 0, func(x *Use) {
		c.process(&x.Process)
		c.index(&x.Device, len(r.Devices))
		c.int(&x.Bytes)
		c.bool(&x.Known, &x.Inferred)
	})
	list(c, &r.Ordinals, 4, 0, func(x *Ordinal) {
		c.process(&x.Process)
		signed(c, &x.Ordinal)
		c.index(&x.Device, len(r.Devices))
	})
}

// list visits the length and the elements of a list. Each element has at least size bytes,
// and there are at most limit of them, 0 for no limit.
func list[T any](c codec, all *[]T, size, limit int, visit func(*T)) {
	if c.d == nil {
		c.e.uint(uint64(len(*all)))
	} else if n := c.d.count(size); limit > 0 && n > limit {
		c.d.fail()
	} else if n > 0 {
		*all = make([]T, n)
	}
	for i := range *all {
		visit(&(*all)[i])
	}
}

// visit writes each field, or reads it.
func visit[T any](c codec, write func(T), read func() T, fields ...*T) {
	for _, v := range fields {
		if c.d == nil {
			write(*v)
		} else {
			*v = read()
		}
	}
}

func (c codec) texts(all *[]string) { list(c, all, 1, 0, func(s *string) { c.string(s) }) }

func (c codec) uint(fields ...*uint64) { visit(c, c.e.uint, c.d.uint, fields...) }

func (c codec) int(fields ...*int64) { visit(c, c.e.int, c.d.int, fields...) }

// signed visits numbers of a type of fewer bits.
func signed[T int | int32](c codec, fields ...*T) {
	for _, v := range fields {
		if c.d == nil {
			c.e.int(int64(*v))
		} else if x := c.d.int(); int64(T(x)) == x {
			*v = T(x)
		} else {
			c.d.fail()
		}
	}
}

// upTo visits a number that is at most limit.
func upTo[T int | uint32 | User](c codec, v *T, limit uint64) {
	if c.d == nil {
		c.e.uint(uint64(*v))
	} else {
		*v = T(c.d.upTo(limit))
	}
}

// index visits an index into a list.
func (c codec) index(v *int, length int) {
	if c.d != nil && length == 0 {
		c.d.fail()
		return
	}
	upTo(c, v, uint64(length-1))
}

func (c codec) bool(fields ...*bool) { visit(c, c.e.bool, c.d.bool, fields...) }

func (c codec) string(fields ...*string) { visit(c, c.e.string, c.d.string, fields...) }

// delta visits a number as the difference from another one.
func (c codec) delta(v *uint64, from uint64) {
	if c.d == nil {
		c.e.int(int64(*v - from))
	} else {
		*v = from + uint64(c.d.int())
	}
}

// moment visits a time as the difference from the one before.
func (c codec) moment(v *uint64) { visit(c, c.e.moment, c.d.moment, v) }

// wall visits times of day, to the nanosecond and without their zone.
func (c codec) wall(fields ...*time.Time) {
	for _, v := range fields {
		if c.d == nil {
			c.e.int(v.Unix())
			c.e.uint(uint64(v.Nanosecond()))
		} else {
			*v = time.Unix(c.d.int(), int64(c.d.upTo(999_999_999))).UTC()
		}
	}
}

func (c codec) process(v *event.Process) { visit(c, c.e.process, c.d.process, v) }

// stack visits the id of a stack as the difference from the one before.
func (c codec) stack(id *uint64) {
	if c.d == nil {
		c.delta(id, c.e.stackID)
		c.e.stackID = *id
	} else {
		c.delta(id, c.d.stackID)
		c.d.stackID = *id
	}
}

func (c codec) frame(p **Place) {
	if c.d == nil {
		c.e.placeRef((*p).ID)
	} else if id := c.d.placeRef(); !c.d.bad {
		*p = c.d.shared.frame(id)
	}
}

// place visits which place a name is of, and whether the name is final.
func (c codec) place(r *Name) {
	if c.d == nil {
		c.e.placeRef(r.Place.ID)
		c.e.bool(r.Final)
		return
	}
	id := c.d.placeRef()
	if r.Final = c.d.bool(); !c.d.bad {
		r.Place = c.d.shared.place(id)
	}
	if r.Place == nil {
		r.Place = &Place{ID: id}
	}
}

func (c codec) mapping(m **snapshot.Mapping) { visit(c, c.e.mapping, c.d.mapping, m) }

// mappingFields visits the definition of a mapping.
func (c codec) mappingFields(m *snapshot.Mapping) {
	c.uint(&m.Start)
	c.delta(&m.Limit, m.Start)
	c.uint(&m.Offset)
	c.string(&m.Path, &m.BuildID)
	c.bool(&m.HasLines)
}

// location visits the name of the place at address.
func (c codec) location(l **snapshot.Location, address uint64) {
	if c.d == nil {
		c.e.location(*l, address)
	} else {
		*l = c.d.location(address)
	}
}

// locationFields visits the definition of a location.
func (c codec) locationFields(l *snapshot.Location, address uint64) {
	c.delta(&l.Address, address)
	c.mapping(&l.Mapping)
	list(c, &l.Lines, 5, 0, func(x *snapshot.Line) {
		c.string(&x.Function, &x.System, &x.File)
		signed(c, &x.Line)
		c.string(&x.Reason)
	})
}
