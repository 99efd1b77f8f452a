package record

import (
	"math"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// A decoder reads payloads, one after the other. It trusts nothing in them: nonsense sets
// bad, and then everything reads as 0.
type decoder struct {
	buf []byte // the rest of the payload
	bad bool

	time    uint64
	stackID uint64
	placeID uint64
	address uint64

	shapes  []shape
	callers []caller
	stacks  []uint64
	sizes   *sizes
	wordCaches

	strings   []string
	textBytes int // bytes of the texts of the entry that is being read
	locations []*snapshot.Location
	mappings  []*snapshot.Mapping

	shared *sharedObjects
	ev     event.Event
}

func newDecoder(k *sharedObjects) *decoder {
	return &decoder{
		sizes:      new(sizes),
		wordCaches: newWordCaches(),
		shared:     k,
	}
}

// reset begins a payload.
func (d *decoder) reset(payload []byte) {
	d.buf, d.bad = payload, false
	d.time, d.stackID, d.placeID, d.address = 0, 0, 0, 0
	clear(d.sizes[:len(d.stacks)+1])
	d.shapes, d.callers, d.stacks = d.shapes[:0], d.callers[:0], d.stacks[:0]
	d.wordCaches.reset()
	clear(d.strings)
	d.strings = append(d.strings[:0], "")
	clear(d.locations)
	d.locations = d.locations[:0]
	clear(d.mappings)
	d.mappings = d.mappings[:0]
}

func (d *decoder) uint() uint64 {
	if len(d.buf) > 0 && d.buf[0] < 0x80 {
		v := d.buf[0]
		d.buf = d.buf[1:]
		return uint64(v)
	}
	return d.longUint()
}

// longUint reads a number of more than one byte.
func (d *decoder) longUint() uint64 {
	var v uint64
	for i, c := range d.buf {
		if i == 9 && c > 1 {
			break
		}
		v |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			d.buf = d.buf[i+1:]
			return v
		}
	}
	d.fail()
	return 0
}

func (d *decoder) fail() { d.buf, d.bad = nil, true }

func (d *decoder) int() int64 { return unzigzag(d.uint()) }

// upTo reads a number that is at most limit.
func (d *decoder) upTo(limit uint64) uint64 {
	v := d.uint()
	if v > limit {
		d.fail()
		return 0
	}
	return v
}

// signed reads a number of a type of fewer bits.
func (d *decoder) signed(low, high int64) int64 {
	v := d.int()
	if v < low || v > high {
		d.fail()
		return 0
	}
	return v
}

func (d *decoder) bool() bool { return d.upTo(1) == 1 }

// count reads how many things follow, each of at least size bytes.
func (d *decoder) count(size int) int {
	return int(d.upTo(uint64(len(d.buf) / size)))
}

func (d *decoder) string() string {
	i := d.upTo(uint64(len(d.strings)))
	if i < uint64(len(d.strings)) {
		return d.countText(d.strings[i])
	}
	n := d.upTo(maxString)
	if d.bad || n > uint64(len(d.buf)) {
		d.fail()
		return ""
	}
	s := d.shared.text(d.buf[:n])
	d.buf = d.buf[n:]
	d.strings = append(d.strings, s)
	return d.countText(s)
}

// countText counts a text for its length, wherever it was defined: no Writer makes a record of
// which a block cannot hold all texts at their length.
func (d *decoder) countText(s string) string {
	if d.textBytes += len(s); d.textBytes > maxPayload {
		d.fail()
		return ""
	}
	return s
}

func (d *decoder) moment() uint64 {
	d.time += uint64(d.int())
	return d.time
}

func (d *decoder) process() event.Process {
	pid := d.upTo(math.MaxUint32)
	return event.Process{PID: uint32(pid), Start: d.uint()}
}

func (d *decoder) mapping() *snapshot.Mapping {
	i := d.upTo(uint64(len(d.mappings)) + 1)
	if i == 0 {
		return nil
	}
	if i <= uint64(len(d.mappings)) {
		return d.mappings[i-1]
	}
	var m snapshot.Mapping
	codec{d: d}.mappingFields(&m)
	if d.bad {
		return nil
	}
	shared := d.shared.mapping(m)
	d.mappings = append(d.mappings, shared)
	return shared
}

func (d *decoder) location(address uint64) *snapshot.Location {
	i := d.upTo(uint64(len(d.locations)))
	if i < uint64(len(d.locations)) {
		return d.locations[i]
	}
	l := &snapshot.Location{}
	codec{d: d}.locationFields(l, address)
	if len(l.Lines) == 0 {
		d.fail()
		return nil
	}
	d.locations = append(d.locations, l)
	return l
}

func (d *decoder) placeRef() uint64 {
	d.placeID += uint64(d.int())
	return d.placeID
}

// place reads a Place's definition.
func (d *decoder) place() {
	id := d.placeRef()
	d.address += uint64(d.int())
	naming := d.upTo(final)
	var l *snapshot.Location
	if naming != unnamed {
		l = d.location(d.address)
	}
	if !d.bad {
		d.shared.define(id, d.address, uint32(naming), l)
	}
}

// next returns the next record, nil at the end of the payload, or, with bad
// set, at nonsense.
func (d *decoder) next() Record {
	for len(d.buf) > 0 {
		d.textBytes = 0
		entry := d.uint()
		if entry == entryPlace {
			d.place()
			continue
		}
		var r Record
		if entry >= entryEvent {
			r = d.event(entry - entryEvent)
		} else {
			r = d.record(entry)
		}
		if d.bad {
			return nil
		}
		return r
	}
	return nil
}
