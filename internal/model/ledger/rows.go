package ledger

import (
	"math/bits"
	"math/rand/v2"
)

// A rowTable has the rows of a process's allocations in one space, by address. An agent has
// a million of them, so they lie close together: a row takes 36 bytes, and 5 to 11 in the
// index. A Go map took 97 in all.
//
// The rows lie in chunks, without gaps: where one is removed, the last one takes its place.
// The index is a hash table of their places.
type rowTable struct {
	chunks [][]packed // all but the last one are full
	n      int        // rows

	// index has 1<<bits elements, or none. An element is 0, or a place plus one in its low
	// bits, and above that as many bits of the hash as fit: they spare the look at most of
	// the rows that have another address. A place of 0 is what a removed row leaves.
	index []uint32
	bits  uint8
	used  int // elements of index that are not 0
}

// chunkRows is how many rows a chunk has: its 18,432 bytes are a size that Go's allocator
// has, so none are lost.
const chunkRows = 512

// A packed is a row with its address, in words of 4 bytes so that none is padding.
type packed [9]uint32

func pack(addr uint64, r *row) packed {
	return packed{
		uint32(addr), uint32(addr >> 32), uint32(r.size), uint32(r.size >> 32),
		uint32(r.time), uint32(r.time >> 32), r.site, r.ctx, r.owner,
	}
}

func (p *packed) addr() uint64 { return uint64(p[0]) | uint64(p[1])<<32 }

func (p *packed) row() row {
	return row{
		size: uint64(p[2]) | uint64(p[3])<<32, time: uint64(p[4]) | uint64(p[5])<<32,
		site: p[6], ctx: p[7], owner: p[8],
	}
}

// hashKeys make hashes that a traced program cannot foresee when it chooses addresses.
var hashKeys = [2]uint64{rand.Uint64(), rand.Uint64() | 1}

func hash(addr uint64) uint64 {
	hi, lo := bits.Mul64(addr^hashKeys[0], hashKeys[1])
	return hi ^ lo
}

func (t *rowTable) at(place int) *packed { return &t.chunks[place/chunkRows][place%chunkRows] }

// element returns the element of the index for a place, and where the search for it begins.
func (t *rowTable) element(hash uint64, place int) (e, begin uint32) {
	return uint32(hash>>32)<<t.bits | uint32(place+1), uint32(hash) & (1<<t.bits - 1)
}

// find returns the place of the row of addr, and of its element in the index.
func (t *rowTable) find(addr uint64) (place int, i uint32, ok bool) {
	if t.n == 0 {
		return 0, 0, false
	}
	mask := uint32(1)<<t.bits - 1
	want, i := t.element(hash(addr), -1)
	for ; ; i = (i + 1) & mask {
		switch e := t.index[i]; {
		case e == 0:
			return 0, 0, false
		case e&^mask == want && e&mask != 0:
			if place = int(e&mask) - 1; t.at(place).addr() == addr {
				return place, i, true
			}
		}
	}
}

// get returns the row of addr.
func (t *rowTable) get(addr uint64) (r row, ok bool) {
	place, _, ok := t.find(addr)
	if ok {
		r = t.at(place).row()
	}
	return r, ok
}

// put sets the row of addr.
func (t *rowTable) put(addr uint64, r *row) {
	if place, _, ok := t.find(addr); ok {
		*t.at(place) = pack(addr, r)
		return
	}
	if t.n%chunkRows == 0 && t.n/chunkRows == len(t.chunks) {
		var chunk []packed // the first one grows: most processes have few allocations
		if t.n > 0 {
			chunk = make([]packed, 0, chunkRows)
		}
		t.chunks = append(t.chunks, chunk)
	}
	last := &t.chunks[t.n/chunkRows]
	*last = append(*last, pack(addr, r))
	t.n++
	if t.used >= len(t.index)/4*3 {
		t.makeIndex()
	} else {
		t.insert(t.n - 1)
	}
}

// insert puts the row at a place into the index, which has room.
func (t *rowTable) insert(place int) {
	e, i := t.element(hash(t.at(place).addr()), place)
	mask := uint32(1)<<t.bits - 1
	for t.index[i]&mask != 0 {
		i = (i + 1) & mask
	}
	if t.index[i] == 0 {
		t.used++
	}
	t.index[i] = e
}

// makeIndex makes an index of which a quarter to a half is used, or one of the least size.
func (t *rowTable) makeIndex() {
	t.bits = uint8(max(bits.Len(uint(2*t.n)), 4))
	if size := 1 << t.bits; size == len(t.index) {
		clear(t.index)
	} else {
		t.index = make([]uint32, size)
	}
	t.used = 0
	for place := range t.n {
		t.insert(place)
	}
}

// remove removes the row of addr, if there is one.
func (t *rowTable) remove(addr uint64) {
	place, i, ok := t.find(addr)
	if !ok {
		return
	}
	mask := uint32(1)<<t.bits - 1
	if t.index[(i+1)&mask] == 0 {
		t.index[i] = 0
		t.used--
	} else {
		t.index[i] = 1 << t.bits
	}
	t.n--
	if moved := t.at(t.n); place != t.n {
		old, j := t.element(hash(moved.addr()), t.n)
		for t.index[j] != old {
			j = (j + 1) & mask
		}
		t.index[j], _ = t.element(hash(moved.addr()), place)
		*t.at(place) = *moved
	}
	chunk := t.n / chunkRows
	t.chunks[chunk] = t.chunks[chunk][:t.n%chunkRows]
	if needed := (t.n+chunkRows/2)/chunkRows + 1; needed < len(t.chunks) {
		t.chunks[needed] = nil
		t.chunks = t.chunks[:needed]
	}
	if len(t.index) > 16 && t.n < len(t.index)/8 {
		t.makeIndex()
	}
}

// all yields all rows, the last one first: yield may remove or change the one that it gets.
func (t *rowTable) all(yield func(uint64, row) bool) {
	for place := t.n - 1; place >= 0; place-- {
		if p := t.at(place); !yield(p.addr(), p.row()) {
			return
		}
	}
}
