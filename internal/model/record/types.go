package record

import (
	"math"
	"reflect"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// entryEvent is the number of an event's entry, and entryPlace that of the definition of a
// Place, which is no record and not counted as one. Other entries have their number from
// types.
const (
	entryEvent = 0
	entryPlace = 1
)

// types has each type of record but events, with what visits its fields, by the number of
// its entry.
var types = [...]recordType{
	2:  of(visitTrace),
	3:  of(visitStack),
	4:  of(visitName),
	5:  of(visitProcess),
	6:  of(visitReading),
	7:  of(visitLoss),
	8:  of(func(c *codec, r *Note) { c.string(&r.Text) }),
	9:  of(visitMoment),
	10: of(func(c *codec, r *Sweep) { c.bool(&r.Drop) }),
	11: of(func(*codec, *Reported) {}),
	12: of(func(c *codec, r *Cut) { c.moment(&r.Time) }),
	13: of(visitSteps),
	14: of(visitTensors),
	15: of(visitHeap),
}

// entries has the numbers of entries by the types of records.
var entries = func() map[reflect.Type]uint64 {
	all := map[reflect.Type]uint64{}
	for i, t := range types {
		if t.pointer != nil {
			all[t.pointer] = uint64(i)
		}
	}
	return all
}()

// A recordType is one type of record.
type recordType struct {
	pointer reflect.Type // to it
	make    func() Record
	visit   func(*codec, Record)
}

func of[T any, P interface {
	*T
	Record
}](visit func(*codec, P)) recordType {
	return recordType{
		reflect.TypeFor[P](),
		func() Record { return P(new(T)) },
		func(c *codec, r Record) { visit(c, r.(P)) },
	}
}

// record writes anything but an event. It sets bad if no reader would take it.
func (c *codec) record(r Record) {
	entry, ok := entries[reflect.TypeOf(r)]
	if !ok {
		c.fail()
		return
	}
	c.write(entry)
	types[entry].visit(c, r)
}

// next reads the next record, nil at the end of the payload, or, with bad set, at nonsense.
// An event holds until the next call.
func (c *codec) next() Record {
	for c.left() > 0 && !c.bad {
		switch entry := c.read(); {
		case entry == entryEvent:
			if c.visitEvent(&c.before); !c.bad {
				c.event = c.before
				return &c.event
			}
		case entry == entryPlace:
			c.definition(&Place{}, unnamed, nil)
		case entry >= uint64(len(types)):
			c.fail()
		default:
			r := types[entry].make()
			if types[entry].visit(c, r); !c.bad {
				return r
			}
		}
	}
	return nil
}

func visitTrace(c *codec, r *Trace) {
	c.string(&r.Version, &r.CommandLine, &r.Target, &r.StackMode, &r.Driver)
	c.wall(&r.Start, &r.Boot)
	c.bool(&r.All, &r.NVML, &r.Physical, &r.Initial)
	signed(c, &r.MaxLive, &r.Incidents)
	c.texts(&r.APIs)
}

func visitStack(c *codec, r *Stack) {
	c.uint(&r.ID)
	c.process(&r.Process)
	list(c, &r.Frames, 1, maxFrames, func(p **Place) { c.place(p, c.shared.frame) })
	if i := slices.Index(r.Frames, nil); i >= 0 && !c.bad {
		r.Frames = slices.Clone(r.Frames[:i])
		c.shared.shortened++
	}
	c.numbers(&r.Modules, maxStackModules)
}

func visitName(c *codec, r *Name) {
	var known *knownPlace
	c.place(&r.Place, func(id uint64) *Place {
		if known = c.shared.place(id); known == nil {
			return &Place{ID: id}
		}
		return &known.Place
	})
	c.bool(&r.Final)
	c.location(&r.Location)
	if known != nil && !c.bad && !c.shared.name(known, r.Location) {
		r.Location = r.Place.Location()
	}
}

func visitProcess(c *codec, r *Process) {
	c.process(&r.Process)
	c.bool(&r.Target)
	c.string(&r.Name)
	c.bool(&r.FromStart)
	c.mapping(&r.Program)
	upTo(c, &r.User, 1<<32)
	c.string(r.Who.Fields()...)
}

func visitReading(c *codec, r *Reading) {
	c.uint(&r.Begin)
	c.moment(&r.Time)
	list(c, &r.Devices, 12, math.MaxInt, func(x *Device) {
		c.string(&x.UUID, &x.Label, &x.Name)
		upTo(c, &x.GPU, math.MaxUint32)
		c.bool(&x.GPUKnown)
		signed(c, &x.Instance)
		signed(c, &x.Total, &x.Used, &x.Free)
		c.bool(&x.MemoryKnown, &x.Listed)
		list(c, &x.Processes, 4, math.MaxInt, func(p *snapshot.GPUProcess) {
			signed(c, &p.PID)
			c.string(&p.Name)
			signed(c, &p.Bytes)
			c.bool(&p.Known)
		})
	})
	device := func(index *int) {
		if len(r.Devices) == 0 {
			c.fail()
			return
		}
		upTo(c, index, uint64(len(r.Devices)-1))
	}
	list(c, &r.Uses, 6, math.MaxInt, func(x *Use) {
		c.process(&x.Process)
		device(&x.Device)
		signed(c, &x.Bytes)
		c.bool(&x.Known, &x.Inferred)
	})
	list(c, &r.Ordinals, 4, math.MaxInt, func(x *Ordinal) {
		c.process(&x.Process)
		signed(c, &x.Ordinal)
		device(&x.Device)
	})
}

func visitLoss(c *codec, r *Loss) {
	list(c, &r.Counters, 3, math.MaxInt, c.counter)
	c.texts(&r.Notes)
}

func (c *codec) counter(x *loss.Counter) {
	c.string(&x.Name, &x.Help)
	c.uint(&x.Value)
}

func visitMoment(c *codec, r *Moment) {
	c.moment(&r.Time)
	c.uint(&r.Slept)
	c.bool(&r.Drained)
}

func visitSteps(c *codec, r *Steps) {
	c.process(&r.Process)
	c.numbers(&r.Numbers, MaxNumbers)
	c.bool(&r.More)
}

func visitTensors(c *codec, r *Tensors) {
	c.moment(&r.Time)
	c.uint(&r.Window.Length, &r.Window.Every)
	c.bool(&r.Window.Open)
}
