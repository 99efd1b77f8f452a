package record

import "github.com/gpumemtrace/gpumemtrace/internal/event"

// event writes an event.
func (e *encoder) event(ev *event.Event) {
	var fields, stack uint64
	stackKnown := true
	if ev.Stack != 0 {
		fields = fieldStack
		stack, stackKnown = e.stacks.of(ev.Stack*e.seed[0], ev.Stack)
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
	var addr, handle, part, stream word
	if ev.Addr != 0 {
		addr = e.addresses.take(ev.Addr)
		fields |= addr.how * fieldAddr
	}
	if ev.Handle != 0 {
		handle = e.handles.take(ev.Handle)
		fields |= handle.how * fieldHandle
	}
	if ev.Part != 0 {
		part = e.parts.take(ev.Part)
		fields |= part.how * fieldPart
	}
	if ev.Stream != 0 {
		stream = e.streams.take(ev.Stream)
		fields |= stream.how * fieldStream
	}

	s := shape{uint8(ev.Op), uint8(ev.Kind), uint8(ev.Space), ev.API, ev.Outer, ev.Result, ev.Device, uint16(fields)}
	e.shape(&s)
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

func (e *encoder) shape(s *shape) {
	key := uint64(s.op) | uint64(s.kind)<<8 | uint64(s.space)<<16 | uint64(s.api)<<24 | uint64(s.outer)<<40
	hash := key*e.seed[1] + (uint64(uint32(s.result))|uint64(uint32(s.device))<<32)*e.seed[2] + uint64(s.fields)*e.seed[3]
	i, known := e.shapes.of(hash, *s)
	e.uint(entryEvent + i)
	if known {
		return
	}
	e.uint(uint64(s.op))
	e.uint(uint64(s.kind))
	e.uint(uint64(s.space))
	e.uint(uint64(s.api))
	e.uint(uint64(s.outer))
	e.int(int64(s.result))
	e.int(int64(s.device))
	e.uint(uint64(s.fields))
}

func (e *encoder) caller(ev *event.Event) {
	c := caller{ev.Proc.PID, ev.TID, ev.Proc.Start, ev.Ctx}
	hash := (uint64(c.pid)|uint64(c.tid)<<32)*e.seed[1] + c.start*e.seed[2] + c.ctx*e.seed[3]
	i, known := e.callers.of(hash, c)
	e.uint(i)
	if known {
		return
	}
	e.process(ev.Proc)
	e.uint(uint64(c.tid))
	e.uint(c.ctx)
}

// A word is how a field is written.
type word struct{ how, value uint64 }

// take says how to write v, which is not 0, and remembers it.
func (m *memory) take(v uint64) word {
	slot := m.slot(v)
	if m.slots[slot] == v {
		return word{wordKnown, slot}
	}
	d := int64(v - m.last)
	m.put(slot, v)
	if d%coarse == 0 {
		return word{wordCoarse, zigzag(d / coarse)}
	}
	return word{wordFine, zigzag(d)}
}
