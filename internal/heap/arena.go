package heap

import (
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// An arena has arrays that are not memory of Go's, whose collector would let as much garbage pile
// up beside them. release gives all of them back.
type arena struct {
	maps [][]byte
}

// An element is what an array of an arena may have: Go's collector looks for no pointers there.
type element interface {
	bool | tier | registry | uint32 | uint64 | edge | seen | entry | gpuBlock | extra | storageImpl
}

// smallArray is the size of arrays, in bytes, that are Go's all the same.
const smallArray = 64 << 10

// room returns an array of zeros.
func room[T element](a *arena, n int) []T {
	var one T
	size := n * int(unsafe.Sizeof(one))
	if size < smallArray {
		return make([]T, n)
	}
	// All pages at once, for one fault in each costs more.
	data, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		return make([]T, n)
	}
	a.maps = append(a.maps, data)
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(data))), n)
}

// resized returns an array with the elements of another, which is given back, and room for n.
func resized[T element](a *arena, from []T, n int) []T {
	var one T
	if i := index(a, from); i >= 0 && n > 0 {
		if data, err := unix.Mremap(a.maps[i], n*int(unsafe.Sizeof(one)), unix.MREMAP_MAYMOVE); err == nil {
			a.maps[i] = data
			return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(data))), n)[:len(from)]
		}
	}
	to := room[T](a, n)[:len(from)]
	copy(to, from)
	drop(a, from)
	return to
}

// drop gives an array back. It returns none.
func drop[T element](a *arena, array []T) []T {
	if i := index(a, array); i >= 0 {
		_ = unix.Munmap(a.maps[i])
		a.maps = slices.Delete(a.maps, i, i+1)
	}
	return nil
}

// index returns which of an arena's arrays one is, -1 for one of Go's.
func index[T element](a *arena, array []T) int {
	begin := unsafe.Pointer(unsafe.SliceData(array))
	return slices.IndexFunc(a.maps, func(data []byte) bool { return unsafe.Pointer(unsafe.SliceData(data)) == begin })
}

// temporary gives back, when done is called, all arrays that were made since.
func (a *arena) temporary() (done func()) {
	n := len(a.maps)
	return func() {
		for _, data := range a.maps[n:] {
			_ = unix.Munmap(data)
		}
		a.maps = a.maps[:n]
	}
}

// release gives all arrays back. None may be used from then on.
func (a *arena) release() {
	for _, data := range a.maps {
		_ = unix.Munmap(data)
	}
	a.maps = nil
}
