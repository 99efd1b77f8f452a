package record

import (
	"encoding/binary"
	"math/rand/v2"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
)

// An encoder fills the payload of one block after the other. Whoever calls it
// has made sure that the record fits.
type encoder struct {
	buf     []byte // all that may be written
	n       int    // bytes written
	records uint32

	time        uint64 // the last one written
	first, last uint64
	stackID     uint64
	placeID     uint64
	address     uint64 // of the last place

	shapes    numbers[shapeKey]
	callers   numbers[caller]
	stacks    numbers[uint64]
	sizes     *sizes
	addresses memory
	handles   memory
	parts     memory
	streams   memory
	seed      [4]uint64 // odd

	strings   map[string]uint64
	locations map[*snapshot.Location]uint64
	mappings  map[*snapshot.Mapping]uint64

	cut uint64 // strings that were cut
}

func newEncoder() *encoder {
	e := &encoder{
		shapes:    newNumbers[shapeKey](maxShapes),
		callers:   newNumbers[caller](maxCallers),
		stacks:    newNumbers[uint64](maxStacks),
		sizes:     new(sizes),
		addresses: newMemory(addressBits),
		handles:   newMemory(handleBits),
		parts:     newMemory(rareBits),
		streams:   newMemory(rareBits),
		strings:   map[string]uint64{},
		locations: map[*snapshot.Location]uint64{},
		mappings:  map[*snapshot.Mapping]uint64{},
	}
	for i := range e.seed {
		e.seed[i] = rand.Uint64() | 1
	}
	return e
}

// reset begins a payload in buf.
func (e *encoder) reset(buf []byte) {
	e.buf, e.n, e.records = buf, 0, 0
	e.time, e.first, e.last = 0, 0, 0
	e.stackID, e.placeID, e.address = 0, 0, 0
	clear(e.sizes[:len(e.stacks.keys)+1])
	e.shapes.reset()
	e.callers.reset()
	e.stacks.reset()
	e.addresses.reset()
	e.handles.reset()
	e.parts.reset()
	e.streams.reset()
	clear(e.strings)
	clear(e.locations)
	clear(e.mappings)
	e.strings[""] = 0
}

// fits tells whether an entry of at most n bytes may come next.
func (e *encoder) fits(n int) bool {
	return e.n+n <= len(e.buf) && !e.shapes.full() && !e.callers.full() && !e.stacks.full()
}

func (e *encoder) uint(v uint64) {
	for v >= 0x80 {
		e.buf[e.n] = byte(v) | 0x80
		e.n++
		v >>= 7
	}
	e.buf[e.n] = byte(v)
	e.n++
}

func (e *encoder) int(v int64) { e.uint(zigzag(v)) }

func (e *encoder) bool(v bool) {
	if v {
		e.uint(1)
	} else {
		e.uint(0)
	}
}

func (e *encoder) string(s string) {
	if len(s) > maxString {
		s = s[:maxString]
		e.cut++
	}
	i, known := e.strings[s]
	if !known {
		i = uint64(len(e.strings))
		e.strings[s] = i
	}
	e.uint(i)
	if !known {
		e.uint(uint64(len(s)))
		e.n += copy(e.buf[e.n:], s)
	}
}

// moment writes a time as the difference to the one before.
func (e *encoder) moment(t uint64) {
	e.int(int64(t - e.time))
	e.time = t
	if t > e.last {
		e.last = t
	}
	if t < e.first || e.first == 0 {
		e.first = t
	}
}

// wall writes a time of day, to the nanosecond and without its zone.
func (e *encoder) wall(t time.Time) {
	e.int(t.Unix())
	e.uint(uint64(t.Nanosecond()))
}

func (e *encoder) process(p event.Process) {
	e.uint(uint64(p.PID))
	e.uint(p.Start)
}

func (e *encoder) mapping(m *snapshot.Mapping) {
	if m == nil {
		e.uint(0)
		return
	}
	i, known := e.mappings[m]
	if !known {
		i = uint64(len(e.mappings))
		e.mappings[m] = i
	}
	e.uint(i + 1)
	if known {
		return
	}
	e.uint(m.Start)
	e.int(int64(m.Limit - m.Start))
	e.uint(m.Offset)
	e.string(m.Path)
	e.string(m.BuildID)
	e.bool(m.HasLines)
}

// location writes the name of the place at address.
func (e *encoder) location(l *snapshot.Location, address uint64) {
	i, known := e.locations[l]
	if !known {
		i = uint64(len(e.locations))
		e.locations[l] = i
	}
	e.uint(i)
	if known {
		return
	}
	e.int(int64(l.Address - address))
	e.mapping(l.Mapping)
	e.uint(uint64(len(l.Lines)))
	for i := range l.Lines {
		line := &l.Lines[i]
		e.string(line.Function)
		e.string(line.System)
		e.string(line.File)
		e.int(int64(line.Line))
		e.string(line.Reason)
	}
}

func (e *encoder) placeRef(id uint64) {
	e.int(int64(id - e.placeID))
	e.placeID = id
}

// place defines a Place. A name that is still to come is told as a Name.
func (e *encoder) place(p *Place, naming uint32, l *snapshot.Location) {
	e.uint(entryPlace)
	e.placeRef(p.ID)
	e.int(int64(p.Address - e.address))
	e.address = p.Address
	e.uint(uint64(naming))
	if naming != unnamed {
		e.location(l, p.Address)
	}
}

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
		e.string(r.Name)
		e.bool(r.Target)
		e.bool(r.FromStart)
		e.mapping(r.Program)
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
	case *Cut:
		e.uint(entryCut)
		e.moment(r.Time)
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
	e.bool(r.Initial)
	e.int(int64(r.MaxLive))
	e.int(int64(r.Incidents))
	e.texts(r.APIs)
}

func (e *encoder) texts(list []string) {
	e.uint(uint64(len(list)))
	for _, s := range list {
		e.string(s)
	}
}

func (e *encoder) reading(r *Reading) {
	e.moment(r.Time)
	e.uint(uint64(len(r.Devices)))
	for i := range r.Devices {
		d := &r.Devices[i]
		e.string(d.UUID)
		e.string(d.Label)
		e.string(d.Name)
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

// bound returns at most how many bytes a record's entry has. It is false for a
// record that breaks the rules of its type, which no reader would take.
func bound(r Record) (n int, ok bool) {
	const number = binary.MaxVarintLen64
	text := func(list ...string) {
		for _, s := range list {
			n += 2*number + min(len(s), maxString)
		}
	}
	n, ok = 16*number, true
	switch r := r.(type) {
	case *Trace:
		text(r.Version, r.CommandLine, r.Target, r.StackMode, r.Driver)
		text(r.APIs...)
	case *Stack:
		n += len(r.Frames) * number
		ok = len(r.Frames) <= maxFrames
		for _, p := range r.Frames {
			ok = ok && p != nil
		}
	case *Name:
		if r.Place == nil || !wellNamed(r.Location) {
			return 0, false
		}
		n += locationBound(r.Location)
	case *Process:
		text(r.Name)
		n += mappingBound(r.Program)
	case *Reading:
		for i := range r.Devices {
			d := &r.Devices[i]
			n += 8 * number
			text(d.UUID, d.Label, d.Name)
			for _, p := range d.Processes {
				n += 4 * number
				text(p.Name)
			}
		}
		for _, u := range r.Uses {
			n += 6 * number
			ok = ok && u.Device >= 0 && u.Device < len(r.Devices)
		}
		for _, o := range r.Ordinals {
			n += 4 * number
			ok = ok && o.Device >= 0 && o.Device < len(r.Devices)
		}
	case *Loss:
		for _, c := range r.Counters {
			n += number
			text(c.Name, c.Help)
		}
		text(r.Notes...)
	case *Note:
		text(r.Text)
	case *Moment, *Sweep, *Reported, *Cut:
	default:
		ok = false
	}
	return n, ok
}

// wellNamed tells whether a location is one that outputs may be given.
func wellNamed(l *snapshot.Location) bool { return l != nil && len(l.Lines) > 0 }

func locationBound(l *snapshot.Location) int {
	n := 4*binary.MaxVarintLen64 + mappingBound(l.Mapping)
	for i := range l.Lines {
		line := &l.Lines[i]
		n += 9 * binary.MaxVarintLen64
		n += min(len(line.Function), maxString) + min(len(line.System), maxString)
		n += min(len(line.File), maxString) + min(len(line.Reason), maxString)
	}
	return n
}

func mappingBound(m *snapshot.Mapping) int {
	if m == nil {
		return binary.MaxVarintLen64
	}
	return 10*binary.MaxVarintLen64 + min(len(m.Path), maxString) + min(len(m.BuildID), maxString)
}
