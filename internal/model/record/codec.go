package record

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// A codec visits the fields of records one after the other, to write them to a payload or
// to read them from one: what an entry holds is described once. A record that is written
// is not changed: others may be reading it.
//
// It trusts nothing that it reads. Nonsense sets bad, as does a record to write that no
// reader would take, and then everything reads as 0.
type codec struct {
	buf     []byte // the payload so far; while reading, the rest of it
	reading bool
	bad     bool

	time        uint64      // the last one that was visited
	first, last uint64      // the earliest and the latest that were written
	before      event.Event // the event before
	cut         uint64      // texts that were cut

	shared *sharedObjects // while reading
	event  event.Event    // that was read last
}

// begin begins a payload: an empty one to write to, or one to read.
func (c *codec) begin(payload []byte) {
	c.buf, c.bad = payload, false
	c.time, c.first, c.last = 0, 0, 0
	c.before = event.Event{}
}

func (c *codec) fail() { c.bad = true }

func (c *codec) write(v uint64) { c.buf = binary.AppendUvarint(c.buf, v) }

func (c *codec) read() uint64 {
	v, n := binary.Uvarint(c.buf)
	if n <= 0 || c.bad {
		c.fail()
		return 0
	}
	c.buf = c.buf[n:]
	return v
}

func (c *codec) uint(fields ...*uint64) {
	for _, v := range fields {
		if c.reading {
			*v = c.read()
		} else {
			c.write(*v)
		}
	}
}

// upTo visits a number of at most limit.
func upTo[T ~int | ~uint8 | ~uint32 | ~uint64](c *codec, v *T, limit uint64) {
	x := uint64(*v)
	c.uint(&x)
	if x > limit {
		c.fail()
	} else if c.reading {
		*v = T(x)
	}
}

// signed visits numbers that may be negative.
func signed[T int | int32 | int64](c *codec, fields ...*T) {
	for _, v := range fields {
		word := uint64(*v)<<1 ^ uint64(int64(*v)>>63)
		c.uint(&word)
		if x := int64(word>>1) ^ -int64(word&1); int64(T(x)) != x {
			c.fail()
		} else if c.reading {
			*v = T(x)
		}
	}
}

func (c *codec) bool(fields ...*bool) {
	for _, v := range fields {
		word := uint64(0)
		if *v {
			word = 1
		}
		upTo(c, &word, 1)
		if c.reading {
			*v = word != 0
		}
	}
}

func (c *codec) string(fields ...*string) {
	for _, v := range fields {
		if c.reading {
			*v = c.readText()
			continue
		}
		s := *v
		if len(s) > maxString {
			s = s[:maxString]
			c.cut++
		}
		c.write(uint64(len(s)))
		c.buf = append(c.buf, s...)
	}
}

func (c *codec) readText() string {
	n := c.read()
	if n > maxString || n > uint64(len(c.buf)) {
		c.fail()
		return ""
	}
	s := c.shared.text(c.buf[:n])
	c.buf = c.buf[n:]
	return s
}

// list visits the length and the elements of a list. Each element has at least size bytes,
// and there are at most limit of them.
func list[T any](c *codec, all *[]T, size, limit int, visit func(*T)) {
	n := len(*all)
	upTo(c, &n, uint64(limit))
	if c.reading && n > len(c.buf)/size {
		c.fail()
	}
	if c.bad {
		return
	}
	if c.reading && n > 0 {
		*all = make([]T, n)
	}
	for i := range *all {
		visit(&(*all)[i])
	}
}

func (c *codec) texts(all *[]string) {
	list(c, all, 1, math.MaxInt, func(s *string) { c.string(s) })
}

func (c *codec) numbers(all *[]uint64, limit int) {
	list(c, all, 1, limit, func(v *uint64) { c.uint(v) })
}

// moment visits a time as the difference from the one before.
func (c *codec) moment(v *uint64) {
	by := int64(*v - c.time)
	signed(c, &by)
	c.time += uint64(by)
	if c.reading {
		*v = c.time
		return
	}
	c.last = max(c.last, *v)
	if *v < c.first || c.first == 0 {
		c.first = *v
	}
}

// wall visits times of day, to the nanosecond and without their zone.
func (c *codec) wall(fields ...*time.Time) {
	for _, v := range fields {
		seconds, nanoseconds := v.Unix(), v.Nanosecond()
		signed(c, &seconds)
		upTo(c, &nanoseconds, 999_999_999)
		if c.reading {
			*v = time.Unix(seconds, int64(nanoseconds)).UTC()
		}
	}
}

func (c *codec) process(p *event.Process) {
	upTo(c, &p.PID, math.MaxUint32)
	c.uint(&p.Start)
}

// place visits a reference to a place, and returns its id. A place whose definition was lost
// reads as nil.
func (c *codec) place(p **Place) (id uint64) {
	if c.reading {
		if id = c.read(); !c.bad {
			*p = c.shared.place(id)
		}
		return id
	}
	if *p == nil {
		c.fail()
		return 0
	}
	c.write((*p).ID)
	return (*p).ID
}

// mapping visits a mapping, or that there is none.
func (c *codec) mapping(p **snapshot.Mapping) {
	known := *p != nil
	if c.bool(&known); !known {
		return
	}
	var m snapshot.Mapping
	if !c.reading {
		m = **p
	}
	c.uint(&m.Start, &m.Limit, &m.Offset)
	c.string(&m.Path, &m.BuildID)
	c.bool(&m.HasLines)
	if c.reading && !c.bad {
		*p = c.shared.mapping(m)
	}
}

// location visits the name of a place, which has a line at least.
func (c *codec) location(p **snapshot.Location) {
	if c.reading {
		*p = &snapshot.Location{}
	}
	l := *p
	if l == nil {
		c.fail()
		return
	}
	c.uint(&l.Address)
	c.mapping(&l.Mapping)
	list(c, &l.Lines, 5, math.MaxInt, func(x *snapshot.Line) {
		c.string(&x.Function, &x.System, &x.File)
		signed(c, &x.Line)
		c.string(&x.Reason)
	})
	if len(l.Lines) == 0 {
		c.fail()
	}
}

// definition visits the definition of a place. A name that is still to come follows as a
// Name.
func (c *codec) definition(p *Place, naming uint32, l *snapshot.Location) {
	id, address := p.ID, p.Address
	c.uint(&id, &address)
	if upTo(c, &naming, final); naming != unnamed {
		c.location(&l)
	}
	if c.reading && !c.bad {
		c.shared.define(id, address, naming, l)
	}
}

// The bits of a mask of the fields that differ from those of the event before. The mask has
// maskBytes bytes.
const (
	bitOp = 1 << iota
	bitKind
	bitSpace
	bitAPI
	bitOuter
	bitResult
	bitDevice
	bitPID
	bitStart
	bitTID
	bitCtx
	bitStack
	bitAddr
	bitSize
	bitHandle
	bitPart
	bitStream
	bitChildPID
	bitChildStart
	bitName
	allBits   = 1<<iota - 1
	maskBytes = 3
)

// maxEvent bounds an event's entry, in bytes, besides its name.
const maxEvent = 256

// visitEvent visits an event, as far as it differs from the one before.
func (c *codec) visitEvent(ev *event.Event) {
	c.moment(&ev.Time)
	at, mask := len(c.buf), uint64(0)
	if !c.reading {
		c.buf = append(c.buf, 0, 0, 0)
	} else if at < maskBytes {
		c.fail()
		return
	} else {
		mask = uint64(c.buf[0]) | uint64(c.buf[1])<<8 | uint64(c.buf[2])<<16
		c.buf = c.buf[maskBytes:]
	}
	b := &c.before
	mask = changed(c, mask, bitOp, &ev.Op, &b.Op)
	mask = changed(c, mask, bitKind, &ev.Kind, &b.Kind)
	mask = changed(c, mask, bitSpace, &ev.Space, &b.Space)
	mask = changed(c, mask, bitAPI, &ev.API, &b.API)
	mask = changed(c, mask, bitOuter, &ev.Outer, &b.Outer)
	mask = changed(c, mask, bitResult, &ev.Result, &b.Result)
	mask = changed(c, mask, bitDevice, &ev.Device, &b.Device)
	mask = changed(c, mask, bitPID, &ev.Proc.PID, &b.Proc.PID)
	mask = changed(c, mask, bitStart, &ev.Proc.Start, &b.Proc.Start)
	mask = changed(c, mask, bitTID, &ev.TID, &b.TID)
	mask = changed(c, mask, bitCtx, &ev.Ctx, &b.Ctx)
	mask = changed(c, mask, bitStack, &ev.Stack, &b.Stack)
	mask = changed(c, mask, bitAddr, &ev.Addr, &b.Addr)
	mask = changed(c, mask, bitSize, &ev.Size, &b.Size)
	mask = changed(c, mask, bitHandle, &ev.Handle, &b.Handle)
	mask = changed(c, mask, bitPart, &ev.Part, &b.Part)
	mask = changed(c, mask, bitStream, &ev.Stream, &b.Stream)
	mask = changed(c, mask, bitChildPID, &ev.Child.PID, &b.Child.PID)
	mask = changed(c, mask, bitChildStart, &ev.Child.Start, &b.Child.Start)
	if !c.reading && ev.Name != "" {
		mask |= bitName
	}
	if mask&bitName != 0 {
		c.string(&ev.Name)
	} else if c.reading {
		ev.Name = ""
	}
	if !c.reading {
		c.buf[at], c.buf[at+1], c.buf[at+2] = byte(mask), byte(mask>>8), byte(mask>>16)
	} else if mask > allBits || ev.Kind >= event.NumKinds || ev.Space >= event.NumSpaces {
		c.fail()
	}
}

// changed visits a field of an event if it differs from that of the event before. It returns
// the mask with the field's bit.
func changed[T ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~int32](c *codec, mask, bit uint64, v, before *T) uint64 {
	switch {
	case c.reading && mask&bit == 0:
		*v = *before
	case c.reading:
		x := c.read()
		if uint64(T(x)) != x {
			c.fail()
		}
		*v, *before = T(x), T(x)
	case *v != *before:
		*before = *v
		c.write(uint64(*v))
		return mask | bit
	}
	return mask
}
