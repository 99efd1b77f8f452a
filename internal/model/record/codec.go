package record

import (
	"math"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// A codec visits the fields of records one after the other, to write them to a payload or
// to read them from one: what an entry holds is described once. A record that is written
// is not changed: others may be reading it.
//
// It trusts nothing that it reads. Nonsense sets bad, and from then on everything reads as 0.
// A record to write that no reader would take sets bad too. An event is not checked: the tracer made it.
type codec struct {
	buf     []byte // the payload; while writing, what there is of it
	at      int    // where to read
	reading bool
	bad     bool

	time        uint64      // the last one that was visited
	first, last uint64      // the earliest and the latest that were written
	before      event.Event // the event before; while reading, the last one
	mask        uint32      // of the fields of an event that were visited, or are to be read
	cut         uint64      // texts that were cut

	shared *sharedObjects // while reading
	event  event.Event    // that was read last
}

// begin begins a payload: an empty one to write to, or one to read.
func (c *codec) begin(payload []byte) {
	c.buf, c.at, c.bad = payload, 0, false
	c.time, c.first, c.last = 0, 0, 0
	c.before = event.Event{}
}

func (c *codec) fail() {
	if c.bad = true; c.reading {
		c.at = len(c.buf)
	}
}

// left returns how many bytes of the payload are still to be read.
func (c *codec) left() int { return len(c.buf) - c.at }

func (c *codec) uint(fields ...*uint64) {
	for _, v := range fields {
		if x := c.number(*v); c.reading {
			*v = x
		}
	}
}

// upTo visits a number of at most limit.
func upTo[T ~int | ~uint8 | ~uint32 | ~uint64](c *codec, v *T, limit uint64) {
	if x := c.number(uint64(*v)); x > limit {
		c.fail()
	} else if c.reading {
		*v = T(x)
	}
}

// signedNumber visits a number that may be negative, as number does.
func (c *codec) signedNumber(v int64) int64 {
	word := c.number(uint64(v)<<1 ^ uint64(v>>63))
	return int64(word>>1) ^ -int64(word&1)
}

// signed visits numbers that may be negative.
func signed[T int | int32 | int64](c *codec, fields ...*T) {
	for _, v := range fields {
		if x := c.signedNumber(int64(*v)); int64(T(x)) != x {
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
	if n > maxString || n > uint64(c.left()) {
		c.fail()
		return ""
	}
	s := c.shared.text(c.buf[c.at:][:n])
	c.at += int(n)
	return s
}

// list visits the length and the elements of a list. Each element has at least size bytes,
// and there are at most limit of them.
func list[T any](c *codec, all *[]T, size, limit int, visit func(*T)) {
	n := len(*all)
	upTo(c, &n, uint64(limit))
	if c.reading && n > c.left()/size {
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
	c.time += uint64(c.signedNumber(int64(*v - c.time)))
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

// place visits a reference to a place. While reading, find returns the place with an id.
func (c *codec) place(p **Place, find func(id uint64) *Place) {
	if c.reading {
		if id := c.read(); !c.bad {
			*p = find(id)
		}
		return
	}
	if *p == nil {
		c.fail()
		return
	}
	c.write((*p).ID)
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
		if c.reading && (x.Line < 0 || x.Line > math.MaxInt32) {
			x.Line = 0 // no file has such a line
		}
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
