package heap

import (
	"fmt"
)

// A torchLayout has the offsets of members of TensorImpl, StorageImpl and AutogradMeta in the
// PyTorch of a process. Nothing in the process states them. So findTorch tries the offsets of
// known releases and checks that they fit the tensors.
type torchLayout struct {
	impl     int // of the Python object: its TensorImpl
	storage  int // of TensorImpl: its StorageImpl; AutogradMeta is next
	object   int // of TensorImpl: the Python object again
	sizes    int // of TensorImpl: how many dimensions, then sizes and strides
	data     int // of StorageImpl: the address
	device   int // of StorageImpl
	bytes    int // of StorageImpl: the size
	required int // of AutogradMeta: whether it needs a gradient; 0 if not found
}

// The offsets of members of AutogradMeta that no release from 1.13 to 2.11 moved, and the
// distances between other members.
const (
	metaGrad  = 40
	metaGraph = 48

	dataToDevice    = 24
	dataToBytes     = 32
	storageToMeta   = 8
	sizesInline     = 5
	sizesToStrides  = 8 + 8*sizesInline
	sizesToOffset   = 8 + 16*sizesInline
	sizesToCount    = sizesToOffset + 8
	sizesToType     = sizesToCount + 8
	implSize        = 256
	maxDims         = 64
	maxTensorBytes  = 1 << 46
	samplesOfLayout = 512
)

// findTorch finds the layout of the PyTorch that has these tensors. why says why none
// fits.
func findTorch(m *cache, tensors []uint64) (_ *torchLayout, why string) {
	step := max(1, len(tensors)/samplesOfLayout)
	var sample []uint64
	for i := 0; i < len(tensors); i += step {
		sample = append(sample, tensors[i])
	}
	best, most, rest := torchLayout{}, 0, 0
	for _, at := range []int{16, 24} {
		for _, storage := range []int{16, 24, 32} {
			for _, data := range []int{16, 24} {
				l := torchLayout{impl: at, storage: storage, data: data, device: data + dataToDevice, bytes: data + dataToBytes}
				if n, none := l.fit(m, sample); n > most {
					best, most, rest = l, n, none
				}
			}
		}
	}
	// Objects come and go while they are read, and some tensors have no memory.
	if most == 0 || (most+rest)*10 < len(sample)*8 {
		return nil, fmt.Sprintf("PyTorch's tensors are not laid out as in any known release: %d of %d fit", most, len(sample))
	}
	best.required = best.findRequired(m, sample)
	return &best, ""
}

// fit counts the tensors that a layout fits, and the tensors without memory, which cannot
// confirm or refute it. It sets the offsets of the object and of the sizes.
func (l *torchLayout) fit(m *cache, sample []uint64) (fits, empty int) {
	// Find the offset at which most TensorImpls have the address of their Python object.
	back := map[int]int{}
	impls := make([]uint64, 0, len(sample))
	for _, o := range sample {
		at := m.word(o + uint64(l.impl))
		b := m.bytes(at, implSize)
		if at&7 != 0 || b == nil {
			continue
		}
		impls = append(impls, at)
		for i := l.storage + 8; i+8 <= 128; i += 8 {
			if word(b[i:]) == o {
				back[i]++
			}
		}
	}
	for i, n := range back {
		if n > back[l.object] {
			l.object = i
		}
	}
	if l.object == 0 {
		return 0, 0
	}
	for sizes := l.object + 8; sizes <= l.object+24; sizes += 8 {
		try := *l
		try.sizes = sizes
		n, none := 0, 0
		for _, at := range impls {
			t, ok := try.readImpl(m, at)
			if !ok {
				continue
			}
			if t.storage == 0 { // sparse, or of a subclass that only wraps others
				none++
				continue
			}
			switch s, ok := try.readStorage(m, t.storage); {
			case !ok || t.span > s.bytes:
			case s.data == 0 || s.bytes == 0:
				none++
			default:
				n++
			}
		}
		if n > fits {
			fits, empty, l.sizes = n, none, sizes
		}
	}
	return fits, empty
}

// findRequired looks for the flag of AutogradMeta that says that a leaf needs a
// gradient. It is 1 in leaves with a gradient accumulator, and 0 or 1 in all others.
func (l *torchLayout) findRequired(m *cache, sample []uint64) int {
	const first, last, accumulator = 96, 200, 64
	sure, bad := [last]int{}, [last]int{}
	for _, o := range sample {
		t, ok := l.readImpl(m, m.word(o+uint64(l.impl)))
		if !ok || t.meta == 0 {
			continue
		}
		b := m.bytes(t.meta, last+8)
		if b == nil {
			continue
		}
		leaf := word(b[metaGraph:]) == 0 && word(b[accumulator:]) != 0
		for i := first; i < last; i += 8 {
			// Compare one byte: nobody writes the bytes after the flag.
			switch {
			case b[i] > 1, leaf && b[i] == 0:
				bad[i]++
			case leaf:
				sure[i]++
			}
		}
	}
	for i := first; i < last; i += 8 {
		if sure[i] > 10*bad[i] {
			return i
		}
	}
	return 0
}
