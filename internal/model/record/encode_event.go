package record

import "github.com/gpumemtrace/gpumemtrace/internal/model/event"

// event writes an event.
func (e *encoder) event(ev *event.Event) {
	var fields, stack uint64
	stackKnown := true
	if ev.Stack != 0 {
		fields = fieldStack
		stack, stackKnown = e.stacks.number(ev.Stack*e.seed[0], ev.Stack)
		stack++
	}
	if ev.Child != (event.Process{}) {
		fields |= fieldChild
	}
	if ev.Name != "" {
		fields |= fieldName
	}
	if ev.Size != 0 {
		switch {
		case e.sizes[stack] == ev.Size:
			fields |= wordKnown * fieldSize
		case ev.Size%coarse == 0:
			fields |= wordCoarse * fieldSize
		default:
			fields |= wordFine * fieldSize
		}
		e.sizes[stack] = ev.Size
	}
	var addr, handle, part, stream storedWord
	if ev.Addr != 0 {
		addr = e.addresses.encode(ev.Addr)
		fields |= addr.how * fieldAddr
	}
	if ev.Handle != 0 {
		handle = e.forHandles(ev.Op).encode(ev.Handle)
		fields |= handle.how * fieldHandle
	}
	if ev.Part != 0 {
		part = e.parts.encode(ev.Part)
		fields |= part.how * fieldPart
	}
	if ev.Stream != 0 {
		stream = e.streams.encode(ev.Stream)
		fields |= stream.how * fieldStream
	}

	e.shape(ev, fields)
	e.moment(ev.Time)
	e.caller(ev)
	if ev.Stack != 0 {
		e.uint(stack - 1)
		if !stackKnown {
			e.uint(ev.Stack)
		}
	}
	if ev.Child != (event.Process{}) {
		e.process(ev.Child)
	}
	if ev.Name != "" {
		e.string(ev.Name)
	}
	switch fields / fieldSize & 3 {
	case wordFine:
		e.uint(ev.Size)
	case wordCoarse:
		e.uint(ev.Size / coarse)
	}
	if addr.how != wordZero {
		e.uint(addr.value)
	}
	if handle.how != wordZero {
		e.uint(handle.value)
	}
	if part.how != wordZero {
		e.uint(part.value)
	}
	if stream.how != wordZero {
		e.uint(stream.value)
	}
	e.records++
}

// A shapeKey is a shape packed into words, which compare faster than its fields.
type shapeKey struct{ call, outcome, fields uint64 }

func (e *encoder) shape(ev *event.Event, fields uint64) {
	key := shapeKey{
		uint64(ev.Op) | uint64(ev.Kind)<<8 | uint64(ev.Space)<<16 | uint64(ev.API)<<24 | uint64(ev.Outer)<<40,
		uint64(uint32(ev.Result)) | uint64(uint32(ev.Device))<<32,
		fields,
	}
	i, known := e.shapes.number(key.call*e.seed[1]+key.outcome*e.seed[2]+key.fields*e.seed[3], key)
	e.uint(entryEvent + i)
	if known {
		return
	}
	e.uint(uint64(ev.Op))
	e.uint(uint64(ev.Kind))
	e.uint(uint64(ev.Space))
	e.uint(uint64(ev.API))
	e.uint(uint64(ev.Outer))
	e.int(int64(ev.Result))
	e.int(int64(ev.Device))
	e.uint(fields)
}

func (e *encoder) caller(ev *event.Event) {
	c := caller{ev.Proc.PID, ev.TID, ev.Proc.Start, ev.Ctx}
	hash := (uint64(c.pid)|uint64(c.tid)<<32)*e.seed[1] + c.start*e.seed[2] + c.ctx*e.seed[3]
	i, known := e.callers.number(hash, c)
	e.uint(i)
	if known {
		return
	}
	e.process(ev.Proc)
	e.uint(uint64(c.tid))
	e.uint(c.ctx)
}

// A storedWord is how a field is written.
type storedWord struct{ how, value uint64 }

// encode returns how to write v, which is not 0, and remembers it.
func (m *wordCache) encode(v uint64) storedWord {
	slot := m.slot(v)
	if m.slots[slot] == v {
		return storedWord{wordKnown, slot}
	}
	d := int64(v - m.last)
	m.add(slot, v)
	if d%coarse == 0 {
		return storedWord{wordCoarse, zigzag(d / coarse)}
	}
	return storedWord{wordFine, zigzag(d)}
}
