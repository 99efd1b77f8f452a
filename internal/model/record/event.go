package record

import "github.com/gpumemtrace/gpumemtrace/internal/model/event"

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
	bitAsked
	allBits   = 1<<iota - 1
	maskBytes = 3
)

// maxEvent bounds an event's entry, in bytes, besides its name.
const maxEvent = 256

// visitEvent visits an event, as far as it differs from the one before. While reading, ev is
// the one before, which is changed.
func (c *Fields) visitEvent(ev *event.Event) {
	c.moment(&ev.Time)
	at := len(c.buf)
	if c.mask = 0; !c.reading {
		c.buf = append(c.buf, 0, 0, 0)
	} else if c.left() < maskBytes {
		c.fail()
		return
	} else {
		m := c.buf[c.at:]
		c.mask = uint32(m[0]) | uint32(m[1])<<8 | uint32(m[2])<<16
		c.at += maskBytes
	}
	b := &c.before
	changed(c, bitOp, &ev.Op, &b.Op)
	changed(c, bitKind, &ev.Kind, &b.Kind)
	changed(c, bitSpace, &ev.Space, &b.Space)
	changed(c, bitAPI, &ev.API, &b.API)
	changed(c, bitOuter, &ev.Outer, &b.Outer)
	changed(c, bitResult, &ev.Result, &b.Result)
	changed(c, bitDevice, &ev.Device, &b.Device)
	changed(c, bitPID, &ev.Proc.PID, &b.Proc.PID)
	changed(c, bitStart, &ev.Proc.Start, &b.Proc.Start)
	changed(c, bitTID, &ev.TID, &b.TID)
	changed(c, bitCtx, &ev.Ctx, &b.Ctx)
	changed(c, bitStack, &ev.Stack, &b.Stack)
	changed(c, bitAddr, &ev.Addr, &b.Addr)
	changed(c, bitSize, &ev.Size, &b.Size)
	changed(c, bitHandle, &ev.Handle, &b.Handle)
	changed(c, bitPart, &ev.Part, &b.Part)
	changed(c, bitStream, &ev.Stream, &b.Stream)
	changed(c, bitChildPID, &ev.Child.PID, &b.Child.PID)
	changed(c, bitChildStart, &ev.Child.Start, &b.Child.Start)
	changed(c, bitAsked, &ev.Asked, &b.Asked)
	if !c.reading && ev.Name != "" {
		c.mask |= bitName
	}
	if c.mask&bitName != 0 {
		c.Text(&ev.Name)
	} else if c.reading {
		ev.Name = ""
	}
	if !c.reading {
		c.buf[at], c.buf[at+1], c.buf[at+2] = byte(c.mask), byte(c.mask>>8), byte(c.mask>>16)
	} else if c.mask > allBits || ev.Kind >= event.NumKinds || ev.Space >= event.NumSpaces {
		c.fail()
	}
}

// changed visits a field of an event if it differs from that of the event before. A number that
// is too large for its field loses its upper bits: a check would make changed too large to be
// inlined. Whoever reads an event must take any value of its fields, but Kind and Space are valid.
func changed[T number](c *Fields, bit uint32, v, before *T) {
	if *v != *before || c.mask&bit != 0 {
		*before = T(c.field(bit, uint64(*v)))
	}
}

type number interface {
	~uint8 | ~uint16 | ~uint32 | ~uint64 | ~int32
}
