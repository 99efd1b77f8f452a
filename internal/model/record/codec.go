package record

import (
	"math"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// Fields visit the fields of records, and of what a keyframe has of the state, one after the
// other, to write them to a payload or to read them from one: what an entry holds is described
// once. A record that is written is not changed: others may be reading it.
//
// They trust nothing that they read. Nonsense sets bad, and from then on everything reads as 0.
// A record to write that no reader would take sets bad too. An event is not checked: the tracer made it.
type Fields struct {
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

	of    PartOf       // that is written
	yield func(Record) // gets the Parts that are written, nil while records are visited
}

// begin begins a payload: an empty one to write to, or one to read.
func (c *Fields) begin(payload []byte) {
	c.buf, c.at, c.bad = payload, 0, false
	c.time, c.first, c.last = 0, 0, 0
	c.before = event.Event{}
}

func (c *Fields) fail() {
	if c.bad = true; c.reading {
		c.at = len(c.buf)
	}
}

// left returns how many bytes of the payload are still to be read.
func (c *Fields) left() int { return len(c.buf) - c.at }

// Uint visits numbers.
func (c *Fields) Uint(fields ...*uint64) {
	for _, v := range fields {
		if x := c.number(*v); c.reading {
			*v = x
		}
	}
}

// UpTo visits a number of at most limit.
func UpTo[T ~int | ~uint8 | ~uint16 | ~uint32 | ~uint64](c *Fields, v *T, limit uint64) {
	if x := c.number(uint64(*v)); x > limit {
		c.fail()
	} else if c.reading {
		*v = T(x)
	}
}

// signedNumber visits a number that may be negative, as number does.
func (c *Fields) signedNumber(v int64) int64 {
	word := c.number(uint64(v)<<1 ^ uint64(v>>63))
	return int64(word>>1) ^ -int64(word&1)
}

// Signed visits numbers that may be negative.
func Signed[T int | int32 | int64](c *Fields, fields ...*T) {
	for _, v := range fields {
		if x := c.signedNumber(int64(*v)); int64(T(x)) != x {
			c.fail()
		} else if c.reading {
			*v = T(x)
		}
	}
}

// Bool visits bools.
func (c *Fields) Bool(fields ...*bool) {
	for _, v := range fields {
		word := uint64(0)
		if *v {
			word = 1
		}
		UpTo(c, &word, 1)
		if c.reading {
			*v = word != 0
		}
	}
}

// Text visits texts.
func (c *Fields) Text(fields ...*string) {
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

func (c *Fields) readText() string {
	n := c.read()
	if n > maxString || n > uint64(c.left()) {
		c.fail()
		return ""
	}
	s := c.shared.text(c.buf[c.at:][:n])
	c.at += int(n)
	return s
}

// List visits the length and the elements of a list. Each element has at least size bytes,
// and there are at most limit of them.
func List[T any](c *Fields, all *[]T, size, limit int, visit func(*T)) {
	n := len(*all)
	UpTo(c, &n, uint64(limit))
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
		c.Next()
		visit(&(*all)[i])
	}
}

func (c *Fields) texts(all *[]string) {
	List(c, all, 1, math.MaxInt, func(s *string) { c.Text(s) })
}

func (c *Fields) numbers(all *[]uint64, limit int) {
	List(c, all, 1, limit, func(v *uint64) { c.Uint(v) })
}

// moment visits a time as the difference from the one before.
func (c *Fields) moment(v *uint64) {
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
func (c *Fields) wall(fields ...*time.Time) {
	for _, v := range fields {
		seconds, nanoseconds := v.Unix(), v.Nanosecond()
		Signed(c, &seconds)
		UpTo(c, &nanoseconds, 999_999_999)
		if c.reading {
			*v = time.Unix(seconds, int64(nanoseconds)).UTC()
		}
	}
}

// Process visits the name of a process.
func (c *Fields) Process(p *event.Process) {
	UpTo(c, &p.PID, math.MaxUint32)
	c.Uint(&p.Start)
}

// place visits a reference to a place. While reading, find returns the place with an id.
func (c *Fields) place(p **Place, find func(id uint64) *Place) {
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
func (c *Fields) mapping(p **snapshot.Mapping) {
	known := *p != nil
	if c.Bool(&known); !known {
		return
	}
	var m snapshot.Mapping
	if !c.reading {
		m = **p
	}
	c.Uint(&m.Start, &m.Limit, &m.Offset)
	c.Text(&m.Path, &m.BuildID)
	c.Bool(&m.HasLines)
	if c.reading && !c.bad {
		*p = c.shared.mapping(m)
	}
}

// location visits the name of a place, which has a line at least.
func (c *Fields) location(p **snapshot.Location) {
	if c.reading {
		*p = &snapshot.Location{}
	}
	l := *p
	if l == nil {
		c.fail()
		return
	}
	c.Uint(&l.Address)
	c.mapping(&l.Mapping)
	List(c, &l.Lines, 5, math.MaxInt, func(x *snapshot.Line) {
		c.Text(&x.Function, &x.System, &x.File)
		Signed(c, &x.Line)
		if c.reading && (x.Line < 0 || x.Line > math.MaxInt32) {
			x.Line = 0 // no file has such a line
		}
		c.Text(&x.Reason)
	})
	if len(l.Lines) == 0 {
		c.fail()
	}
}

// definition visits the definition of a place. A name that is still to come follows as a
// Name.
func (c *Fields) definition(p *Place, naming uint32, l *snapshot.Location) {
	id, address := p.ID, p.Address
	c.Uint(&id, &address)
	if UpTo(c, &naming, final); naming != unnamed {
		c.location(&l)
	}
	if c.reading && !c.bad {
		c.shared.define(id, address, naming, l)
	}
}
