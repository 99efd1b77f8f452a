package heap

import (
	"cmp"
	"runtime"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// A cupyClass is what a class of CuPy is.
type cupyClass uint8

const (
	notCuPy cupyClass = iota
	isCuPyArray
	isCuPyPointer
	isCuPyMemory
	isCuPyChunk
	isCuPyArena
	isCuPyPool
)

// cupyClasses are those of CuPy 9 to 15. They are extension types, so their names are whole.
var cupyClasses = map[string]cupyClass{
	"cupy._core.core.ndarray": isCuPyArray, "cupy._core.core._ndarray_base": isCuPyArray,
	"cupy.cuda.memory.MemoryPointer": isCuPyPointer, "cupy.cuda.memory.BaseMemory": isCuPyMemory,
	"cupy.cuda.memory._Chunk": isCuPyChunk, "cupy.cuda.memory._Arena": isCuPyArena, "cupy.cuda.memory.SingleDeviceMemoryPool": isCuPyPool,
}

// Cython lays members out in the order of their declaration, behind two words of each object and one of most classes.
// What members say together proves each object.
const (
	arrayBefore  = 10 // words before an array's pointer: elements, shape, strides, flags and the type of elements
	pooledRounds = 4  // readings of a pool that changes
)

// cupy returns which of CuPy's classes an object is of, notCuPy if it is of none.
func (r *references) cupy(at uint64) cupyClass { return r.py.typeOf(at).cupy }

// cupyMemory reads an object that stands for memory, which may be none.
func (r *references) cupyMemory(at uint64) (s storageImpl, ok bool) {
	w := r.mem.words(at, 5)
	if len(w) < 5 || r.cupy(at) != isCuPyMemory {
		return s, false
	}
	s = storageImpl{data: w[2], bytes: w[3], device: int32(uint32(w[4]))}
	return s, s.data < maxAddress && s.bytes <= maxTensorBytes && s.device >= 0 && s.device < maxDevices
}

// cupyPointer reads a pointer into memory.
func (r *references) cupyPointer(at uint64) (address, memory uint64, s storageImpl, ok bool) {
	w := r.mem.words(at, 6)
	if len(w) < 6 || r.cupy(at) != isCuPyPointer {
		return 0, 0, s, false
	}
	s, ok = r.cupyMemory(w[5])
	return w[3], w[5], s, ok && w[3] >= s.data && w[3] <= s.data+s.bytes && int32(uint32(w[4])) == s.device
}

// cupyObject adds the memory of an array, or of a pointer that no array may have.
func (r *references) cupyObject(v vertex, at uint64, c *class) {
	var a array
	pointer, low, high := at, uint64(0), uint64(0)
	ok := c.cupy == isCuPyPointer
	if c.cupy == isCuPyArray {
		pointer, a, low, high, ok = r.cupyArray(at, c)
	}
	address, memory, s, points := r.cupyPointer(pointer)
	if !ok || !points || low > address-s.data || high > s.data+s.bytes-address {
		r.lost.Add(tensorsUnfit, 1)
		return
	}
	if s.bytes == 0 || s.data == 0 {
		return
	}
	if to := r.addExtra(extraCuPy, memory); to != noVertex {
		r.framework, r.arrays[v] = "CuPy", a
		r.store(to, s)
		r.to(to, label(kindStorage, 0))
	}
}

// cupyArray finds an array's pointer, before which its shape is, and how many bytes before and after the pointer
// it has.
func (r *references) cupyArray(at uint64, c *class) (pointer uint64, a array, low, high uint64, ok bool) {
	words := r.mem.words(at, min(c.basic, maxOpaque)/8)
	words = words[min(2, len(words)):] // without what each object begins with
	i := slices.IndexFunc(words[min(arrayBefore, len(words)):], func(w uint64) bool { return r.cupy(w) == isCuPyPointer })
	if i < 0 {
		return 0, a, 0, 0, false
	}
	pointer, words = words[i+arrayBefore], words[i:]
	shape, one := r.vector(words[1:])
	strides, other := r.vector(words[4:])
	if !one || !other || len(shape) != len(strides) {
		return 0, a, 0, 0, false
	}
	dtype := words[arrayBefore-1]
	name, _ := r.py.className(r.mem.word(dtype + dtypeType))
	a.dtype, high = numberType(shortName(name))
	elements := uint64(1)
	for i, n := range shape {
		stride := int64(strides[i])
		step := uint64(max(stride, -stride))
		if n > maxTensorBytes || step > maxTensorBytes || n > 0 && (elements > maxTensorBytes/n || step > maxTensorBytes/n) {
			return 0, a, 0, 0, false
		}
		a.shape = append(a.shape, int64(n))
		elements *= n
		if reach := max(n, 1) - 1; stride < 0 {
			low += reach * step
		} else {
			high += reach * step
		}
	}
	if elements == 0 {
		low, high = 0, 0
	}
	return pointer, a, low, high, elements == words[0]
}

// vector returns the numbers of a std::vector, whose three words are given.
func (r *references) vector(words []uint64) (out []uint64, ok bool) {
	begin, end, room := words[0], words[1], words[2]
	if begin == end {
		return nil, true
	}
	if begin == 0 || begin&7 != 0 || end < begin || room < end || (end-begin)&7 != 0 || end-begin > 8*maxDims {
		return nil, false
	}
	out = r.mem.words(begin, int(end-begin)/8)
	return out, len(out) == int(end-begin)/8
}

// keptFree returns memory that libraries keep although no array has it. Each of them knows how much it has: what
// does not add up to that is read again, since it changes, and not shown in the end.
func (r *references) keptFree() (out []holder.Storage) {
	for v, c := range r.objects.class {
		at, read := r.objects.address[v], r.cupyPool
		switch c := &r.py.classes[c]; {
		case c.manager:
			read = r.numbaPending
		case c.cupy != isCuPyPool:
			continue
		}
		found, ok := read(at)
		for range pooledRounds {
			if ok || !r.mem.tick() {
				break
			}
			r.mem.forget()
			found, ok = read(at)
		}
		if !ok {
			r.lost.Add(tensorsUnfit, 1)
			continue
		}
		out = append(out, found...)
	}
	return out
}

// kept is memory that lies free, as a storage.
func (s *storageImpl) kept(name string) holder.Storage {
	return holder.Storage{Address: s.data, Bytes: s.bytes, Device: s.device, Holder: name}
}

// cupyPool reads one pool: up to CuPy 14.0 a dictionary of the chunks in use by their addresses, then one of what each
// stream has free, and how many bytes it has. From 14.1 on there is no first one, the second has weak references,
// and behind a mutex is how many bytes there are, and how many are in use.
func (r *references) cupyPool(at uint64) (free []holder.Storage, ok bool) {
	w := r.mem.words(at, 13)
	isDict := func(at uint64) bool { return r.py.typeOf(at).flags&flagDict != 0 }
	if len(w) < 13 || !isDict(w[4]) {
		return nil, false
	}
	sum, ok, older := uint64(0), true, isDict(w[5])
	arenas, total := w[4], w[10]-w[11]
	if runtime.GOARCH == "arm64" { // whose mutex is larger
		total = w[11] - w[12]
	}
	if older {
		arenas, total = w[5], w[6]
		r.py.eachItem(w[4], func(key, chunk uint64) bool {
			s, is := r.cupyChunk(chunk)
			ok = ok && is && integer(r.py.text(key)) == int64(s.data)
			sum += s.bytes
			return ok
		})
	}
	r.py.eachItem(arenas, func(_, arena uint64) bool {
		if !older {
			if arena = r.mem.word(arena + weakReferent); r.cupy(arena) != isCuPyArena { // it has gone
				return true
			}
		}
		list := r.mem.word(arena + 24)
		parts := r.mem.words(r.mem.word(list+24), int(min(r.mem.word(list+16), maxGPUBlocks)))
		ok = ok && r.cupy(arena) == isCuPyArena && uint64(len(parts)) == r.mem.word(list+16)
		var chunks []uint64
		add := func(chunk uint64) {
			if chunk != 0 && len(chunks) < maxGPUBlocks {
				chunks = append(chunks, chunk)
			}
		}
		for _, part := range parts { // None, a set of chunks, or one that waits to get into the tree
			if add(part); r.py.typeOf(part).shape == shapeSet {
				r.eachMember(part, add)
			}
		}
		ok = ok && (older || eachNode(r.mem, arena+40, maxGPUBlocks, func(node uint64) { add(r.mem.word(node + 40)) }))
		for _, chunk := range chunks {
			if r.cupy(chunk) != isCuPyChunk { // what was removed
				continue
			}
			s, is := r.cupyChunk(chunk)
			ok = ok && is
			sum += s.bytes
			free = append(free, s.kept(holder.FreeInCuPy))
		}
		return ok && len(free) < maxGPUBlocks
	})
	return free, ok && sum == total
}

// cupyChunk reads a part of memory, whose neighbours refer to it.
func (r *references) cupyChunk(at uint64) (s storageImpl, ok bool) {
	w := r.mem.words(at, 9)
	if len(w) < 9 || r.cupy(at) != isCuPyChunk {
		return s, false
	}
	s, ok = r.cupyMemory(w[3])
	offset, size, before, after := w[4], w[5], w[7], w[8]
	if !ok || offset > s.bytes || size > s.bytes-offset || size%512 != 0 ||
		r.cupy(before) == isCuPyChunk && r.mem.word(before+8*8) != at || r.cupy(after) == isCuPyChunk && r.mem.word(after+8*7) != at {
		return s, false
	}
	s.data, s.bytes = s.data+offset, size
	return s, true
}

// addFree adds what libraries keep free. What a storage lies in as well is not free any more.
func addFree(reading *holder.Reading, all []holder.Storage) {
	taken := occupied(reading.Storages)
	for _, s := range all {
		if !taken(s.Device, s.Address, s.Address+s.Bytes) {
			reading.Storages = append(reading.Storages, s)
		}
	}
	sorting.Stable(reading.Storages, func(a, b holder.Storage) int { return cmp.Compare(a.Address, b.Address) })
}

// occupied returns a function that tells whether a storage begins in a range of addresses of a GPU.
func occupied(all []holder.Storage) func(device int32, begin, end uint64) bool {
	type place struct {
		device  int32
		address uint64
	}
	order := func(a, b place) int {
		return cmp.Or(cmp.Compare(a.device, b.device), cmp.Compare(a.address, b.address))
	}
	places := make([]place, len(all))
	for i := range all {
		places[i] = place{all[i].Device, all[i].Address}
	}
	sorting.Stable(places, order)
	return func(device int32, begin, end uint64) bool {
		at, _ := slices.BinarySearchFunc(places, place{device, begin}, order)
		return at < len(places) && places[at].device == device && places[at].address < end
	}
}
