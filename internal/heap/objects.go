package heap

import (
	"cmp"
	"math/bits"

	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// A vertex is an index of something that may hold something: an object, a frame, a
// tensor's implementation, a node of an autograd graph, a storage.
type vertex = uint32

const noVertex = ^vertex(0)

// objects are those that the garbage collector of CPython tracks, in order of their
// addresses.
type objects struct {
	address []uint64
	class   []uint32 // index of the type
	count   []uint32 // references to it, by its own count
	pages   []page   // that have objects, in order
	table   []uint32 // index of a page plus 1, by a hash of the page
}

// A page has a bit for each place where an object begins.
type page struct {
	number uint64
	begins [pageWords]uint64
	before [pageWords]uint16 // objects of the page that begin before each word of begins
	first  uint32            // index of the first object
}

const pageWords = pageSize / 8 / 64

// newObjects puts the objects of lists in order.
func (r *objectReader) newObjects(found []seen) objects {
	o := objects{table: make([]uint32, 1<<12)}
	for i := range found {
		if found[i].class != noType {
			bit := found[i].address % pageSize / 8
			o.page(found[i].address / pageSize).begins[bit/64] |= 1 << (bit % 64)
		} else {
			r.lost.Add(objectsGone, 1)
		}
	}
	sorting.Stable(o.pages, func(a, b page) int { return cmp.Compare(a.number, b.number) })
	clear(o.table)
	n := uint32(0)
	for i := range o.pages {
		p := &o.pages[i]
		o.table[o.place(p.number)] = uint32(i + 1)
		p.first = n
		for w, begins := range p.begins {
			p.before[w] = uint16(n - p.first)
			n += uint32(bits.OnesCount64(begins))
		}
	}
	o.address, o.class, o.count = room[uint64](r.arena, int(n)), room[uint32](r.arena, int(n)), room[uint32](r.arena, int(n))
	for i := range found {
		if v, ok := o.find(found[i].address); ok && found[i].class != noType {
			o.address[v], o.class[v], o.count[v] = found[i].address, found[i].class, found[i].count
		}
	}
	return o
}

func hash(number uint64) uint64 {
	h := number * 0x9E3779B97F4A7C15
	return h ^ h>>29
}

// place returns where in the table a page is, or where it belongs.
func (o *objects) place(number uint64) uint64 {
	mask := uint64(len(o.table) - 1)
	at := hash(number) & mask
	for o.table[at] != 0 && o.pages[o.table[at]-1].number != number {
		at = (at + 1) & mask
	}
	return at
}

// page returns a page, a new one if there is none.
func (o *objects) page(number uint64) *page {
	if n := len(o.pages); n > 0 && o.pages[n-1].number == number {
		return &o.pages[n-1]
	}
	at := o.place(number)
	if i := o.table[at]; i != 0 {
		return &o.pages[i-1]
	}
	o.pages = append(o.pages, page{number: number})
	o.table[at] = uint32(len(o.pages))
	if 4*len(o.pages) > len(o.table) {
		o.table = make([]uint32, 2*len(o.table))
		for i := range o.pages {
			o.table[o.place(o.pages[i].number)] = uint32(i + 1)
		}
	}
	return &o.pages[len(o.pages)-1]
}

// find returns the object at an address.
func (o *objects) find(address uint64) (vertex, bool) {
	if address&7 != 0 {
		return 0, false
	}
	i := o.table[o.place(address/pageSize)]
	if i == 0 {
		return 0, false
	}
	p := &o.pages[i-1]
	bit := address % pageSize / 8
	begins := p.begins[bit/64]
	if begins&(1<<(bit%64)) == 0 {
		return 0, false
	}
	return p.first + uint32(p.before[bit/64]) + uint32(bits.OnesCount64(begins&(1<<(bit%64)-1))), true
}

// An instance is an object by its address, and that of its type.
type instance struct{ address, class uint64 }

// lives tells whether an object is still there.
func (r *objectReader) lives(o instance) bool {
	b := r.mem.bytes(o.address, 16)
	return b != nil && word(b)&(1<<32-1) != 0 && word(b[8:]) == o.class
}

// ofShape returns the objects of a shape.
func (r *objectReader) ofShape(o *objects, s shape) []instance {
	var found []instance
	for v, c := range o.class {
		if r.classes[c].shape == s {
			found = append(found, instance{o.address[v], r.classes[c].address})
		}
	}
	return found
}
