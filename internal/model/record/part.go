package record

import (
	"math"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

// A Part is fields of one part of the state in a keyframe, which only the package of that part
// understands. They come in several Parts if need be: all but the last have More.
type Part struct {
	Of   PartOf
	Data []byte // at most 128 KiB
	More bool
}

// Record marks a Part as a Record.
func (*Part) Record() {}

// A PartOf is a part of the state.
type PartOf uint8

// The parts, in the order in which they are rebuilt.
const (
	OfState PartOf = iota
	OfDriver
	OfPhysical
	OfTensors
	OfSteps
	NumParts
)

const (
	maxPart  = 128 << 10
	fullPart = 32 << 10 // from here on the rest goes into another Part
	// MaxParts is more than all Parts of a keyframe have in bytes: a Writer writes none so large.
	MaxParts = maxKeyframe * maxRatio
)

func visitPart(c *Fields, r *Part) {
	UpTo(c, &r.Of, uint64(NumParts)-1)
	n := len(r.Data)
	if UpTo(c, &n, maxPart); c.reading && !c.bad && n <= c.left() {
		r.Data = slices.Clone(c.buf[c.at:][:n])
		c.at += n
	} else if c.reading {
		c.fail()
	} else {
		c.buf = append(c.buf, r.Data...)
	}
	c.Bool(&r.More)
}

// WriteFields yields what visit writes as Parts.
func WriteFields(of PartOf, visit func(*Fields), yield func(Record)) {
	f := &Fields{of: of, yield: yield}
	visit(f)
	f.put(false)
}

// ReadFields has visit read the Data of all Parts, one after the other. It returns whether they
// made sense.
func ReadFields(data []byte, visit func(*Fields)) bool {
	f := &Fields{reading: true, buf: data, shared: newKnown(0)}
	visit(f)
	return !f.bad && f.left() == 0
}

func (c *Fields) put(more bool) {
	c.yield(&Part{Of: c.of, Data: c.buf, More: more})
	c.buf = nil
}

// Next begins another Part if the one being written is full. It is to be called before each of
// many values; List and Map do so.
func (c *Fields) Next() {
	if c.yield != nil && len(c.buf) >= fullPart {
		c.put(true)
	}
}

// Reading reports whether fields are read.
func (c *Fields) Reading() bool { return c.reading }

// Failed reports whether nonsense was read.
func (c *Fields) Failed() bool { return c.bad }

// Require says that what was read is nonsense unless ok is set.
func (c *Fields) Require(ok bool) {
	if c.reading && !ok {
		c.fail()
	}
}

// Near visits a number that is probably near the one before, which it replaces.
func (c *Fields) Near(v, before *uint64) {
	*before += uint64(c.signedNumber(int64(*v - *before)))
	*v = *before
}

// Unsigned visits numbers of small types.
func Unsigned[T ~uint8 | ~uint16 | ~uint32](f *Fields, fields ...*T) {
	for _, v := range fields {
		UpTo(f, v, uint64(^T(0)))
	}
}

// Make returns what *at refers to: while reading, a new zero value.
func Make[T any](f *Fields, at **T) *T {
	if f.reading {
		*at = new(T)
	}
	return *at
}

// Index visits an index into a list of n elements.
func Index[T ~int | ~uint32 | ~uint64](f *Fields, v *T, n int) {
	f.Require(n > 0)
	UpTo(f, v, uint64(max(n-1, 0)))
}

// Map visits a map of at most limit elements, of which each has at least size bytes. Those that
// are read replace what the map has.
func Map[K comparable, V any](f *Fields, m map[K]V, size, limit int, visit func(*K, *V)) {
	type element struct {
		key   K
		value V
	}
	all := make([]element, 0, len(m))
	for key, value := range m {
		all = append(all, element{key, value})
	}
	List(f, &all, size, limit, func(x *element) { visit(&x.key, &x.value) })
	if !f.reading || f.bad {
		return
	}
	clear(m)
	for _, x := range all {
		_, twice := m[x.key]
		f.Require(!twice)
		m[x.key] = x.value
	}
}

// Loss visits the counters of a set.
func (c *Fields) Loss(set *loss.Set) {
	var counted []loss.Counter
	for _, x := range set.Counters() {
		if x.Value > 0 {
			counted = append(counted, x)
		}
	}
	List(c, &counted, 2, math.MaxInt, func(x *loss.Counter) {
		c.Text(&x.Name)
		c.Uint(&x.Value)
	})
	if c.reading {
		set.AddByName(counted)
	}
}
