package heap

import "math/bits"

// A vertex is an index of something that may hold something: an object, a frame, a
// tensor's implementation, a node of an autograd graph, a storage.
type vertex = uint32

const noVertex = ^vertex(0)

// Objects are those that the garbage collector of CPython tracks, in order of their
// addresses.
type objects struct {
	address []uint64
	class   []uint32 // index of the type
	count   []uint32 // references to it, by its own count
	pages   []page   // that have objects, in order
	table   []uint32 // index of a page plus 1, by a hash of the page
}

// A page has a bit for each place where an object begins. First is the index of its first
// object.
type page struct {
	number uint64
	first  uint32
	begins [pageSize / 8 / 64]uint64
}

// readObjects reads the class and the count of each object.
func (r *objectReader) readObjects(found []uint64) objects {
	o := objects{class: make([]uint32, 0, len(found)), count: make([]uint32, 0, len(found))}
	kept := found[:0]
	for _, a := range found {
		b := r.mem.bytes(a, 16)
		if b == nil {
			r.lost.Add(objectsGone, 1)
			continue
		}
		count := uint32(word(b))
		if word(b)>>32 != 0 && r.lay.minor < 12 { // more than anybody counts
			count = 1<<32 - 1
		}
		t := r.typeAt(word(b[8:]))
		if t == noType {
			r.lost.Add(objectsGone, 1)
			continue
		}
		kept = append(kept, a)
		o.class = append(o.class, t)
		o.count = append(o.count, count)
	}
	o.address = kept
	o.index()
	return o
}

func hash(number uint64) uint64 {
	h := number * 0x9E3779B97F4A7C15
	return h ^ h>>29
}

// index makes find work.
func (o *objects) index() {
	n := 0
	for i, a := range o.address {
		if i == 0 || a/pageSize != o.address[i-1]/pageSize {
			n++
		}
	}
	o.pages = make([]page, 0, n)
	for i, a := range o.address {
		if i == 0 || a/pageSize != o.address[i-1]/pageSize {
			o.pages = append(o.pages, page{number: a / pageSize, first: uint32(i)})
		}
		bit := a % pageSize / 8
		o.pages[len(o.pages)-1].begins[bit/64] |= 1 << (bit % 64)
	}
	size := 16
	for size < 4*n {
		size *= 2
	}
	o.table = make([]uint32, size)
	for i := range o.pages {
		at := hash(o.pages[i].number) & uint64(size-1)
		for o.table[at] != 0 {
			at = (at + 1) & uint64(size-1)
		}
		o.table[at] = uint32(i + 1)
	}
}

// find returns the object at an address.
func (o *objects) find(address uint64) (vertex, bool) {
	if address&7 != 0 {
		return 0, false
	}
	mask := uint64(len(o.table) - 1)
	for at := hash(address/pageSize) & mask; ; at = (at + 1) & mask {
		i := o.table[at]
		if i == 0 {
			return 0, false
		}
		p := &o.pages[i-1]
		if p.number != address/pageSize {
			continue
		}
		bit := address % pageSize / 8
		if p.begins[bit/64]&(1<<(bit%64)) == 0 {
			return 0, false
		}
		v := p.first + uint32(bits.OnesCount64(p.begins[bit/64]&(1<<(bit%64)-1)))
		for _, w := range p.begins[:bit/64] {
			v += uint32(bits.OnesCount64(w))
		}
		return v, true
	}
}

// ofShape returns the addresses of the objects of a shape.
func (r *objectReader) ofShape(o *objects, s shape) []uint64 {
	var found []uint64
	for v, c := range o.class {
		if r.classes[c].shape == s {
			found = append(found, o.address[v])
		}
	}
	return found
}
