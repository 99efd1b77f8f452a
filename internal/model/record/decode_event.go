package record

import (
	"math"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// event reads an event of the shape with that number.
func (d *decoder) event(number uint64) *event.Event {
	if number >= uint64(len(d.shapes)) && !d.newShape(number) {
		return nil
	}
	s := &d.shapes[number]
	ev := &d.ev
	*ev = event.Event{
		Time: d.moment(),
		Op:   event.Op(s.op), Kind: event.Kind(s.kind), Space: event.Space(s.space),
		API: s.api, Outer: s.outer, Result: s.result, Device: s.device,
	}
	d.caller(ev)
	fields := uint64(s.fields)
	var stack uint64
	if fields&fieldStack != 0 {
		i := d.upTo(uint64(len(d.stacks)))
		if i == uint64(len(d.stacks)) {
			if i >= maxStacks {
				d.fail()
				return nil
			}
			d.stacks = append(d.stacks, d.uint())
		}
		ev.Stack = d.stacks[i]
		stack = i + 1
	}
	if fields&fieldChild != 0 {
		ev.Child = d.process()
	}
	if fields&fieldName != 0 {
		ev.Name = d.string()
	}
	if how := fields / fieldSize & 3; how != wordZero {
		switch how {
		case wordKnown:
			ev.Size = d.sizes[stack]
		case wordFine:
			ev.Size = d.uint()
		case wordCoarse:
			ev.Size = d.upTo(math.MaxUint64/coarse) * coarse
		}
		d.sizes[stack] = ev.Size
	}
	if how := fields / fieldAddr & 3; how != wordZero {
		ev.Addr = d.word(&d.addresses, how)
	}
	if how := fields / fieldHandle & 3; how != wordZero {
		ev.Handle = d.word(d.forHandles(ev.Op), how)
	}
	if how := fields / fieldPart & 3; how != wordZero {
		ev.Part = d.word(&d.parts, how)
	}
	if how := fields / fieldStream & 3; how != wordZero {
		ev.Stream = d.word(&d.streams, how)
	}
	return ev
}

// newShape reads the definition of a shape, which must be the next.
func (d *decoder) newShape(number uint64) bool {
	if number != uint64(len(d.shapes)) || number >= maxShapes {
		d.fail()
		return false
	}
	s := shape{
		op:     uint8(d.upTo(math.MaxUint8)),
		kind:   uint8(d.upTo(uint64(event.NumKinds) - 1)),
		space:  uint8(d.upTo(uint64(event.NumSpaces) - 1)),
		api:    uint16(d.upTo(math.MaxUint16)),
		outer:  uint16(d.upTo(math.MaxUint16)),
		result: int32(d.signed(math.MinInt32, math.MaxInt32)),
		device: int32(d.signed(math.MinInt32, math.MaxInt32)),
		fields: uint16(d.upTo(allFields)),
	}
	d.shapes = append(d.shapes, s)
	return !d.bad
}

func (d *decoder) caller(ev *event.Event) {
	i := d.upTo(uint64(len(d.callers)))
	if i == uint64(len(d.callers)) {
		if i >= maxCallers {
			d.fail()
			return
		}
		p := d.process()
		d.callers = append(d.callers, caller{pid: p.PID, start: p.Start, tid: uint32(d.upTo(math.MaxUint32)), ctx: d.uint()})
	}
	c := &d.callers[i]
	ev.Proc = event.Process{PID: c.pid, Start: c.start}
	ev.TID, ev.Ctx = c.tid, c.ctx
}

// word reads a word that wordCache.encode wrote.
func (d *decoder) word(m *wordCache, how uint64) uint64 {
	if how == wordKnown {
		return m.slots[d.upTo(uint64(len(m.slots)-1))]
	}
	by := d.int()
	if how == wordCoarse {
		by *= coarse
	}
	v := m.last + uint64(by)
	m.add(m.slot(v), v)
	return v
}
