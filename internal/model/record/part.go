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

func (f *Fields) put(more bool) {
	f.yield(&Part{Of: f.of, Data: f.buf, More: more})
	f.buf = nil
}

// Next begins another Part if the one being written is full. It is to be called before each of
// many values; List and Map do so.
func (f *Fields) Next() {
	if f.yield != nil && len(f.buf) >= fullPart {
		f.put(true)
	}
}

// Reading reports whether fields are read.
func (f *Fields) Reading() bool { return f.reading }

// Failed reports whether nonsense was read.
func (f *Fields) Failed() bool { return f.bad }

// Require says that what was read is nonsense unless ok is set.
func (f *Fields) Require(ok bool) {
	if f.reading && !ok {
		f.fail()
	}
}

// Near visits a number that is probably near the one before, which it replaces.
func (f *Fields) Near(v, before *uint64) {
	*before += uint64(f.signedNumber(int64(*v - *before)))
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
func (f *Fields) Loss(set *loss.Set) {
	var counted []loss.Counter
	for _, c := range set.Counters() {
		if c.Value > 0 {
			counted = append(counted, c)
		}
	}
	List(f, &counted, 2, math.MaxInt, func(c *loss.Counter) {
		f.Text(&c.Name)
		f.Uint(&c.Value)
	})
	if f.reading {
		set.AddByName(counted)
	}
}
