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
	5:  of(visitOldProcess),
	6:  of(visitReading),
	7:  of(visitLoss),
	8:  of(func(c *Fields, r *Note) { c.Text(&r.Text) }),
	9:  of(visitMoment),
	10: of(func(c *Fields, r *Sweep) { c.Bool(&r.Drop) }),
	11: of(func(*Fields, *Reported) {}),
	12: of(func(c *Fields, r *Cut) { c.moment(&r.Time) }),
	13: of(visitPart),
	14: of(visitTensors),
	15: of(visitOldHeap),
	16: of(visitOldBlocks),
	17: of(func(c *Fields, r *Allocator) { c.Process(&r.Process); c.Text(&r.Settings) }),
	18: of(visitProcess), // since version 14
	19: of(visitHeap),    // since version 14
	20: of(visitBlocks),  // since version 14
}

// entries has the numbers of entries by the types of records. Of two with one type the later one is
// written.
var entries = func() map[reflect.Type]uint64 {
	all := map[reflect.Type]uint64{}
	for i, t := range types {
		if t.pointer != nil {
			all[t.pointer] = uint64(i)
		}
	}
	return all
}()

// oldFields counts the fields of a snapshot.Who that files of version 13 contain.
const oldFields = 9

// A recordType is one type of record.
type recordType struct {
	pointer reflect.Type // to it
	make    func() Record
	visit   func(*Fields, Record)
}

func of[T any, P interface {
	*T
	Record
}](visit func(*Fields, P)) recordType {
	return recordType{
		reflect.TypeFor[P](),
		func() Record { return P(new(T)) },
		func(c *Fields, r Record) { visit(c, r.(P)) },
	}
}

// record writes anything but an event. It sets bad if no reader would take it.
func (c *Fields) record(r Record) {
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
func (c *Fields) next() Record {
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

func visitTrace(c *Fields, r *Trace) {
	c.Text(&r.Version, &r.CommandLine, &r.Target, &r.StackMode, &r.Driver)
	c.wall(&r.Start, &r.Boot)
	c.Bool(&r.All, &r.NVML, &r.Physical, &r.Initial)
	Signed(c, &r.MaxLive, &r.Incidents)
	c.texts(&r.APIs)
}

func visitStack(c *Fields, r *Stack) {
	c.Uint(&r.ID)
	c.Process(&r.Process)
	List(c, &r.Frames, 1, maxFrames, func(p **Place) { c.place(p, c.shared.frame) })
	if i := slices.Index(r.Frames, nil); i >= 0 && !c.bad {
		r.Frames = slices.Clone(r.Frames[:i])
		c.shared.shortened++
	}
	c.numbers(&r.Modules, maxStackModules)
}

func visitName(c *Fields, r *Name) {
	var known *knownPlace
	c.place(&r.Place, func(id uint64) *Place {
		if known = c.shared.place(id); known == nil {
			return &Place{ID: id}
		}
		return &known.Place
	})
	c.Bool(&r.Final)
	c.location(&r.Location)
	if known != nil && !c.bad && !c.shared.name(known, r.Location) {
		r.Location = r.Place.Location()
	}
}

// visitOldProcess visits what version 13 has of a process.
func visitOldProcess(c *Fields, r *Process) {
	c.Process(&r.Process)
	c.Bool(&r.Target)
	c.Text(&r.Name)
	c.Bool(&r.FromStart)
	c.mapping(&r.Program)
	UpTo(c, &r.User, 1<<32)
	c.Text(r.Who.Fields()[:oldFields]...)
}

func visitProcess(c *Fields, r *Process) {
	visitOldProcess(c, r)
	c.Text(r.Who.Fields()[oldFields:]...)
	UpTo(c, &r.Parent, math.MaxUint32)
	c.Uint(&r.ParentEnd)
}

func visitReading(c *Fields, r *Reading) {
	c.Uint(&r.Begin)
	c.moment(&r.Time)
	List(c, &r.Devices, 12, math.MaxInt, func(x *Device) {
		c.Text(&x.UUID, &x.Label, &x.Name)
		UpTo(c, &x.GPU, math.MaxUint32)
		c.Bool(&x.GPUKnown)
		Signed(c, &x.Instance)
		Signed(c, &x.Total, &x.Used, &x.Free)
		c.Bool(&x.MemoryKnown, &x.Listed)
		List(c, &x.Processes, 4, math.MaxInt, func(p *snapshot.GPUProcess) {
			Signed(c, &p.PID)
			c.Text(&p.Name)
			Signed(c, &p.Bytes)
			c.Bool(&p.Known)
		})
	})
	device := func(index *int) {
		if len(r.Devices) == 0 {
			c.fail()
			return
		}
		UpTo(c, index, uint64(len(r.Devices)-1))
	}
	List(c, &r.Uses, 6, math.MaxInt, func(x *Use) {
		c.Process(&x.Process)
		device(&x.Device)
		Signed(c, &x.Bytes)
		c.Bool(&x.Known, &x.Inferred)
	})
	List(c, &r.Ordinals, 4, math.MaxInt, func(x *Ordinal) {
		c.Process(&x.Process)
		Signed(c, &x.Ordinal)
		device(&x.Device)
	})
}

func visitLoss(c *Fields, r *Loss) {
	List(c, &r.Counters, 3, math.MaxInt, c.counter)
	c.texts(&r.Notes)
}

func (c *Fields) counter(x *loss.Counter) {
	c.Text(&x.Name, &x.Help)
	c.Uint(&x.Value)
}

func visitMoment(c *Fields, r *Moment) {
	c.moment(&r.Time)
	c.Uint(&r.Slept)
	c.Bool(&r.Drained)
}

func visitTensors(c *Fields, r *Tensors) {
	c.moment(&r.Time)
	c.Uint(&r.Window.Length, &r.Window.Every)
	c.Bool(&r.Window.Open)
}
