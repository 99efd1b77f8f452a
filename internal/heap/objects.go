package heap

import (
	"math/bits"
	"math/rand/v2"
	"slices"
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
	count   []uint32 // references to it, by its own count, that were not found yet
	regions []region // by a hash of their number
	used    int      // regions that have objects
	begins  []uint64 // of each page that has objects, pageWords words with a bit for each place where one begins
	first   []uint32 // index of each page's first object
}

// A region has some pages beside each other.
type region struct {
	number uint64
	first  uint32 // of its pages with objects: what number it has among those of all regions
	pages  uint16 // a bit for each page that has objects; 0 if there is no region here
}

const (
	regionSize = 16 * pageSize
	pageWords  = pageSize / 8 / 64
)

// newObjects puts the objects of lists in order.
func (r *objectReader) newObjects(found []seen) objects {
	o := objects{regions: make([]region, 1<<10)}
	for i := range found {
		if found[i].class != noType {
			o.addPage(found[i].address)
		} else {
			r.lost.Add(objectsGone, 1)
		}
	}
	numbers := make([]uint64, 0, o.used)
	for i := range o.regions {
		if o.regions[i].pages != 0 {
			numbers = append(numbers, o.regions[i].number)
		}
	}
	slices.Sort(numbers)
	pages := 0
	for _, number := range numbers {
		g := o.region(number)
		g.first = uint32(pages)
		pages += bits.OnesCount16(g.pages)
	}
	o.begins, o.first = room[uint64](r.arena, pages*pageWords), room[uint32](r.arena, pages)
	for i := range found {
		if found[i].class != noType {
			words, _ := o.page(found[i].address)
			at := found[i].address % pageSize / 8
			words[at/64] |= 1 << (at % 64)
		}
	}
	n := uint32(0)
	for i, begins := range o.begins {
		if i%pageWords == 0 {
			o.first[i/pageWords] = n
		}
		n += uint32(bits.OnesCount64(begins))
	}
	o.address, o.class, o.count = room[uint64](r.arena, int(n)), room[uint32](r.arena, int(n)), room[uint32](r.arena, int(n))
	for i := range found {
		if v, ok := o.find(found[i].address); ok && found[i].class != noType {
			o.address[v], o.class[v], o.count[v] = found[i].address, found[i].class, found[i].count
		}
	}
	return o
}

// factor spreads regions. A target that knew it could choose addresses that collide.
var factor = rand.Uint64() | 1

// region returns where the region of a number is, or belongs.
func (o *objects) region(number uint64) *region {
	mask := uint64(len(o.regions) - 1)
	at := number * factor >> 29 & mask
	for o.regions[at].pages != 0 && o.regions[at].number != number {
		at = (at + 1) & mask
	}
	return &o.regions[at]
}

// addPage notes that the page of an address has objects.
func (o *objects) addPage(address uint64) {
	number := address / regionSize
	g := o.region(number)
	if g.pages == 0 {
		if o.used++; 2*o.used > len(o.regions) {
			before := o.regions
			o.regions = make([]region, 2*len(before))
			for i := range before {
				if before[i].pages != 0 {
					*o.region(before[i].number) = before[i]
				}
			}
			g = o.region(number)
		}
		g.number = number
	}
	g.pages |= 1 << (address / pageSize % 16)
}

// page returns the bits of the page of an address, and its number, nil if it has no objects.
func (o *objects) page(address uint64) (begins []uint64, n uint32) {
	g := o.region(address / regionSize)
	bit := uint16(1) << (address / pageSize % 16)
	if g.pages&bit == 0 {
		return nil, 0
	}
	n = g.first + uint32(bits.OnesCount16(g.pages&(bit-1)))
	return o.begins[n*pageWords : (n+1)*pageWords], n
}

// find returns the object at an address.
func (o *objects) find(address uint64) (vertex, bool) {
	begins, page := o.page(address)
	if begins == nil || address&7 != 0 {
		return 0, false
	}
	word, bit := address%pageSize/8/64, uint64(1)<<(address/8%64)
	if begins[word]&bit == 0 {
		return 0, false
	}
	v := o.first[page] + uint32(bits.OnesCount64(begins[word]&(bit-1)))
	for _, b := range begins[:word] {
		v += uint32(bits.OnesCount64(b))
	}
	return v, true
}

// found notes that a reference to an object was found.
func (o *objects) found(v vertex) { o.count[v] -= min(o.count[v], 1) }

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
