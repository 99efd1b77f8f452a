package record

import (
	"math/rand/v2"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// An encoder fills the payload of one block after the other. Its caller has made sure that
// the record fits.
type encoder struct {
	buf     []byte // all that may be written
	n       int    // bytes written
	records uint32

	time        uint64 // the last one written
	first, last uint64
	stackID     uint64
	placeID     uint64
	address     uint64 // of the last place

	shapes  numbering[shapeKey]
	callers numbering[caller]
	stacks  numbering[uint64]
	sizes   *sizes
	wordCaches
	seed [4]uint64 // odd

	strings   map[string]uint64
	locations map[*snapshot.Location]uint64
	mappings  map[*snapshot.Mapping]uint64

	cut uint64 // strings that were cut
}

func newEncoder() *encoder {
	e := &encoder{
		shapes:     newNumbers[shapeKey](maxShapes),
		callers:    newNumbers[caller](maxCallers),
		stacks:     newNumbers[uint64](maxStacks),
		sizes:      new(sizes),
		wordCaches: newWordCaches(),
		strings:    map[string]uint64{},
		locations:  map[*snapshot.Location]uint64{},
		mappings:   map[*snapshot.Mapping]uint64{},
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
	e.wordCaches.reset()
	clear(e.strings)
	clear(e.locations)
	clear(e.mappings)
	e.strings[""] = 0
}

// fits reports whether an entry of at most n bytes may come next.
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
	codec{e: e}.mappingFields(m)
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
	codec{e: e}.locationFields(l, address)
}

func (e *encoder) placeRef(id uint64) {
	e.int(int64(id - e.placeID))
	e.placeID = id
}

// place defines a Place. A name that is still to come follows as a Name.
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
