package heap

import (
	"bytes"
	"fmt"
	"slices"
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
	layoutRounds    = 4
)

// findTorch finds the layout of the PyTorch that has these tensors. why says why none
// fits. Tensors that vanish or change while they are read say nothing about it.
func (r *objectReader) findTorch(tensors []instance) (_ *torchLayout, why string) {
	for range layoutRounds {
		sample := r.liveSample(tensors)
		best, most := torchLayout{}, 0
		for _, at := range []int{16, 24} {
			for _, storage := range []int{16, 24, 32} {
				for _, data := range []int{16, 24} {
					l := torchLayout{impl: at, storage: storage, data: data, device: data + dataToDevice, bytes: data + dataToBytes}
					if n := l.fit(r.mem, sample); n > most {
						best, most = l, n
					}
				}
			}
		}
		fits, refuted := 0, 0
		for _, o := range sample {
			switch best.agrees(r.mem, o.address) {
			case agrees:
				fits++
			case refutes:
				if r.stays(o, &best) {
					refuted++
				}
			}
		}
		if fits > 0 && refuted*4 <= fits {
			best.required = best.findRequired(r.mem, sample)
			return &best, ""
		}
		why = fmt.Sprintf("PyTorch's tensors are not laid out as in any known release: %d of %d fit", fits, fits+refuted)
	}
	return nil, why
}

// liveSample returns some of the tensors that are still there.
func (r *objectReader) liveSample(tensors []instance) (sample []instance) {
	r.mem.forget()
	step := max(1, len(tensors)/(16*samplesOfLayout))
	var live []instance
	for i := 0; i < len(tensors); i += step {
		if r.lives(tensors[i]) {
			live = append(live, tensors[i])
		}
	}
	step = max(1, len(live)/samplesOfLayout)
	for i := 0; i < len(live); i += step {
		sample = append(sample, live[i])
	}
	return sample
}

// stays tells whether a tensor that refutes a layout does so each time that it is read, and is the same
// each time.
func (r *objectReader) stays(o instance, l *torchLayout) bool {
	var before []byte
	for i := range 2 {
		r.mem.forget()
		if !r.lives(o) || l.agrees(r.mem, o.address) != refutes {
			return false
		}
		now := slices.Clone(r.mem.bytes(o.address+uint64(l.impl), 8))
		if len(now) == 8 {
			now = append(now, r.mem.bytes(word(now), implSize)...)
		}
		if i > 0 && !bytes.Equal(before, now) {
			return false
		}
		before = now
	}
	return true
}

// A verdict is what a tensor says about a layout.
type verdict uint8

const (
	refutes verdict = iota
	agrees
	abstains // it has no memory
)

// agrees tells whether a tensor fits a layout.
func (l *torchLayout) agrees(m *cache, tensor uint64) verdict {
	t, ok := l.readImpl(m, m.word(tensor+uint64(l.impl)))
	if !ok {
		return refutes
	}
	if t.storage == 0 { // sparse, or of a subclass that only wraps others
		return abstains
	}
	switch s, ok := l.readStorage(m, t.storage); {
	case !ok || t.span > s.bytes:
		return refutes
	case s.data == 0 || s.bytes == 0:
		return abstains
	}
	return agrees
}

// fit counts the tensors that a layout fits. It sets the offsets of the object and of the sizes.
func (l *torchLayout) fit(m *cache, sample []instance) (fits int) {
	// Find the offset at which most TensorImpls have the address of their Python object.
	back := map[int]int{}
	for _, o := range sample {
		b := m.bytes(m.word(o.address+uint64(l.impl)), implSize)
		for i := l.storage + 8; b != nil && i+8 <= 128; i += 8 {
			if word(b[i:]) == o.address {
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
		return 0
	}
	for sizes := l.object + 8; sizes <= l.object+24; sizes += 8 {
		try, n := *l, 0
		try.sizes = sizes
		for _, o := range sample {
			if try.agrees(m, o.address) == agrees {
				n++
			}
		}
		if n > fits {
			fits, l.sizes = n, sizes
		}
	}
	return fits
}

// findRequired looks for the flag of AutogradMeta that says that a leaf needs a
// gradient. It is 1 in leaves with a gradient accumulator, and 0 or 1 in all others.
func (l *torchLayout) findRequired(m *cache, sample []instance) int {
	const first, last, accumulator = 96, 200, 64
	sure, bad := [last]int{}, [last]int{}
	for _, o := range sample {
		t, ok := l.readImpl(m, m.word(o.address+uint64(l.impl)))
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
