package heap

import (
	"cmp"
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

// cupyClasses are those of CuPy 9 to 14. They are extension types, so their names are whole.
var cupyClasses = map[string]cupyClass{
	"cupy._core.core.ndarray": isCuPyArray, "cupy._core.core._ndarray_base": isCuPyArray,
	"cupy.cuda.memory.MemoryPointer": isCuPyPointer, "cupy.cuda.memory.BaseMemory": isCuPyMemory,
	"cupy.cuda.memory._Chunk": isCuPyChunk, "cupy.cuda.memory._Arena": isCuPyArena, "cupy.cuda.memory.SingleDeviceMemoryPool": isCuPyPool,
}

// Words of objects of CuPy: Cython lays members out in the order of their declaration. What they say together
// proves each object.
const (
	memoryWords  = 5       // address, size and GPU from the third one on
	pointerWords = 6       // address, GPU and memory from the fourth one on
	chunkWordsOf = 9       // memory, offset, size, stream and two neighbours from the fourth one on
	arrayBefore  = 10      // before the pointer: elements, shape, strides, flags and the type of elements
	poolBefore   = 4       // before a pool's two dictionaries
	pooledRounds = 4       // readings of a pool that changes
	maxBins      = 1 << 16 // of free chunks of a stream
	cupyRounding = 512     // bytes
)

// cupy tells what an object of CuPy is.
func (r *references) cupy(at uint64) cupyClass { return r.py.typeOf(at).cupy }

// cupyMemory reads an object that stands for memory, which may be none, or another library's.
func (r *references) cupyMemory(at uint64) (s storageImpl, ok bool) {
	c, w := r.py.typeOf(at), r.mem.words(at, memoryWords)
	if len(w) < memoryWords || c.cupy != isCuPyMemory {
		return s, false
	}
	s = storageImpl{data: w[2], bytes: w[3], device: int32(uint32(w[4])), lent: c.name == "cupy.cuda.memory.UnownedMemory"}
	return s, s.data < maxAddress && s.bytes <= maxTensorBytes && s.device >= 0 && s.device < maxDevices
}

// cupyPointer reads a pointer into memory.
func (r *references) cupyPointer(at uint64) (address, memory uint64, s storageImpl, ok bool) {
	w := r.mem.words(at, pointerWords)
	if len(w) < pointerWords || r.cupy(at) != isCuPyPointer {
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
		r.framework, r.arrays[v], r.storages[to] = "CuPy", a, s
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

// A pooled is memory that a framework keeps although no array has it.
type pooled struct {
	holder string
	storageImpl
}

// cupyPools reads what CuPy's pools keep free. A pool knows how much it has: free chunks are shown if they and
// those in use are that much.
func (r *references) cupyPools() (out []pooled) {
	for v, c := range r.objects.class {
		if r.py.classes[c].cupy != isCuPyPool {
			continue
		}
		proven := false
		for range pooledRounds {
			var free []pooled
			if free, proven = r.cupyPool(r.objects.address[v]); proven || !r.mem.tick() {
				out = append(out, free...)
				break
			}
			r.mem.forget()
		}
		if !proven {
			r.lost.Add(tensorsUnfit, 1)
		}
	}
	return out
}

// cupyPool reads one pool: a dictionary of the chunks in use by their addresses, one of what each stream has free,
// and how many bytes it has.
func (r *references) cupyPool(at uint64) (free []pooled, ok bool) {
	w := r.mem.words(at, poolBefore+3)
	if len(w) < poolBefore+3 || r.py.typeOf(w[poolBefore]).flags&flagDict == 0 || r.py.typeOf(w[poolBefore+1]).flags&flagDict == 0 {
		return nil, false
	}
	sum, ok := uint64(0), true
	r.py.eachItem(w[poolBefore], func(key, chunk uint64) bool {
		s, is := r.cupyChunk(chunk)
		ok = ok && is && integer(r.py.text(key)) == int64(s.data)
		sum += s.bytes
		return ok
	})
	r.py.eachItem(w[poolBefore+1], func(_, arena uint64) bool {
		list := r.mem.word(arena + 24)
		bins := r.mem.words(r.mem.word(list+24), int(min(r.mem.word(list+16), maxBins)))
		ok = ok && r.cupy(arena) == isCuPyArena && uint64(len(bins)) == r.mem.word(list+16)
		var chunks []uint64
		for _, bin := range bins { // None, or a set
			if r.py.typeOf(bin).shape == shapeSet {
				r.eachMember(bin, func(m uint64) {
					if m != 0 && len(chunks) < maxGPUBlocks {
						chunks = append(chunks, m)
					}
				})
			}
		}
		for _, chunk := range chunks {
			if r.cupy(chunk) != isCuPyChunk { // what was removed
				continue
			}
			s, is := r.cupyChunk(chunk)
			ok = ok && is
			sum += s.bytes
			free = append(free, pooled{holder.FreeInCuPy, s})
		}
		return ok && len(free) < maxGPUBlocks
	})
	return free, ok && sum == w[poolBefore+2]
}

// cupyChunk reads a part of memory, whose neighbours refer to it.
func (r *references) cupyChunk(at uint64) (s storageImpl, ok bool) {
	w := r.mem.words(at, chunkWordsOf)
	if len(w) < chunkWordsOf || r.cupy(at) != isCuPyChunk {
		return s, false
	}
	s, ok = r.cupyMemory(w[3])
	offset, size, before, after := w[4], w[5], w[7], w[8]
	if !ok || offset > s.bytes || size > s.bytes-offset || size%cupyRounding != 0 ||
		r.cupy(before) == isCuPyChunk && r.mem.word(before+8*8) != at || r.cupy(after) == isCuPyChunk && r.mem.word(after+8*7) != at {
		return s, false
	}
	s.data, s.bytes = s.data+offset, size
	return s, true
}

// addPooled adds storages of what no array has. What a storage lies in as well is not free any more.
func addPooled(reading *holder.Reading, all []pooled) {
	held := slices.Clone(reading.Storages)
	sorting.Stable(held, func(a, b holder.Storage) int {
		return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.Address, b.Address))
	})
	for _, p := range all {
		at, _ := slices.BinarySearchFunc(held, p, func(s holder.Storage, p pooled) int {
			return cmp.Or(cmp.Compare(s.Device, p.device), cmp.Compare(s.Address, p.data))
		})
		if at == len(held) || held[at].Device != p.device || held[at].Address >= p.data+p.bytes {
			reading.Storages = append(reading.Storages, holder.Storage{Address: p.data, Bytes: p.bytes, Device: p.device, Holder: p.holder})
		}
	}
	sorting.Stable(reading.Storages, func(a, b holder.Storage) int { return cmp.Compare(a.Address, b.Address) })
}
