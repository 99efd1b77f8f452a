package heap

import (
	"math"
	"slices"
	"strings"
)

// dtypes are the types of PyTorch's elements with their sizes, in the order of
// c10::ScalarType.
var dtypes = []struct {
	name string
	size uint64
}{
	{"uint8", 1}, {"int8", 1}, {"int16", 2}, {"int32", 4}, {"int64", 8}, {"float16", 2}, {"float32", 4}, {"float64", 8},
	{"complex32", 4}, {"complex64", 8}, {"complex128", 16}, {"bool", 1}, {"qint8", 1}, {"quint8", 1}, {"qint32", 4},
	{"bfloat16", 2}, {"quint4x2", 1}, {"quint2x4", 1}, {"bits1x8", 1}, {"bits2x4", 1}, {"bits4x2", 1}, {"bits8", 1},
	{"bits16", 2}, {"float8_e5m2", 1}, {"float8_e4m3fn", 1}, {"float8_e5m2fnuz", 1}, {"float8_e4m3fnuz", 1},
	{"uint16", 2}, {"uint32", 4}, {"uint64", 8}, {"uint1", 1}, {"uint2", 1}, {"uint3", 1}, {"uint4", 1}, {"uint5", 1},
	{"uint6", 1}, {"uint7", 1}, {"int1", 1}, {"int2", 1}, {"int3", 1}, {"int4", 1}, {"int5", 1}, {"int6", 1}, {"int7", 1},
	{"float8_e8m0fnu", 1}, {"float4_e2m1fn_x2", 1},
}

// Kinds of devices of c10::DeviceType that are shown.
const (
	deviceCPU  = 0
	deviceCUDA = 1
)

// An impl is a TensorImpl.
type impl struct {
	tensor
	storage, meta uint64
	span          uint64 // bytes of the storage from its begin to the last element
}

// A tensor is what is kept of an impl.
type tensor struct {
	shape    []int64
	dtype    uint16
	required bool // it needs a gradient
}

// readImpl reads a TensorImpl. ok tells whether it can be one.
func (l *torchLayout) readImpl(m *cache, at uint64) (t impl, ok bool) {
	if at&7 != 0 {
		return t, false
	}
	b := m.bytes(at, implSize)
	if b == nil || l.sizes+sizesToType+2 > implSize {
		return t, false
	}
	dims := word(b[l.sizes:])
	count := word(b[l.sizes+sizesToCount:])
	offset := word(b[l.sizes+sizesToOffset:])
	t.dtype = uint16(b[l.sizes+sizesToType]) | uint16(b[l.sizes+sizesToType+1])<<8
	t.storage, t.meta = word(b[l.storage:]), word(b[l.storage+storageToMeta:])
	if dims > maxDims || count > math.MaxInt64 || int(t.dtype) >= len(dtypes) || offset > math.MaxInt64 {
		return t, false
	}
	var inline [2][sizesInline]uint64
	sizes, strides := inline[0][:], inline[1][:]
	if dims <= sizesInline {
		for i := range int(dims) {
			sizes[i], strides[i] = word(b[l.sizes+8+8*i:]), word(b[l.sizes+sizesToStrides+8*i:])
		}
		sizes = sizes[:dims]
	} else {
		both := m.words(word(b[l.sizes+8:]), int(2*dims))
		if len(both) != int(2*dims) {
			return t, false
		}
		sizes, strides = both[:dims], both[dims:]
	}
	if dims > 0 { // a scalar has none, as in a recording
		t.shape = make([]int64, dims)
	}
	elements, last := uint64(1), offset
	for i, n := range sizes {
		if n > math.MaxInt64 || n > 0 && elements > math.MaxInt64/n || strides[i] > 1<<48 && int64(strides[i]) >= 0 {
			return t, false
		}
		elements *= n
		if n > 1 {
			last += (n - 1) * strides[i]
		}
		t.shape[i] = int64(n)
	}
	if elements != count {
		return t, false
	}
	if elements > 0 {
		t.span = (last + 1) * dtypes[t.dtype].size
	}
	return t, true
}

// A storageImpl is a StorageImpl.
type storageImpl struct {
	data, bytes uint64
	device      int32 // -1 for the CPU
	vertex      vertex
}

// readStorage reads a StorageImpl. ok tells whether it can be one.
func (l *torchLayout) readStorage(m *cache, at uint64) (s storageImpl, ok bool) {
	if at&7 != 0 {
		return s, false
	}
	b := m.bytes(at, l.bytes+8)
	if b == nil {
		return s, false
	}
	s.data, s.bytes = word(b[l.data:]), word(b[l.bytes:])
	kind, index := b[l.device], int8(b[l.device+1])
	if s.bytes > maxTensorBytes || s.data >= maxAddress || kind > 32 || index < -1 {
		return s, false
	}
	switch kind {
	case deviceCPU:
		s.device = -1
		// What tensors of the CPU lie in can be read.
		if s.data != 0 && s.bytes != 0 && m.bytes(s.data, 1) == nil {
			return s, false
		}
	case deviceCUDA:
		if index < 0 {
			return s, false
		}
		s.device = int32(index)
	default:
		s.data = 0
	}
	return s, true
}

// tensorReferences adds the TensorImpl of a tensor's object.
func (r *references) tensorReferences(o vertex, at uint64) {
	if r.torch == nil {
		return
	}
	p := r.mem.word(at + uint64(r.torch.impl))
	if _, ok := r.torch.readImpl(r.mem, p); !ok {
		r.lost.Add(tensorsUnfit, 1)
		return
	}
	v := r.addExtra(extraImpl, p)
	if v != noVertex {
		r.objectOf[v] = o
	}
	r.to(v, label(kindImpl, 0))
}

// implReferences adds a tensor's storage, gradient and graph.
func (r *references) implReferences(v vertex, at uint64) {
	t, ok := r.torch.readImpl(r.mem, at)
	if !ok {
		r.lost.Add(tensorsUnfit, 1)
		return
	}
	r.impls = append(r.impls, t.tensor)
	r.extras[int(v)-len(r.objects.address)].at = uint32(len(r.impls))
	// The object may live on because the tensor does.
	if o, ok := r.objectOf[v]; ok {
		r.to(o, label(kindObject, 0))
	}
	if t.storage != 0 {
		s, ok := r.torch.readStorage(r.mem, t.storage)
		switch {
		case !ok || s.data != 0 && t.span > s.bytes:
			r.lost.Add(tensorsUnfit, 1)
		case s.data != 0 && s.bytes != 0:
			if sv := r.addExtra(extraStorage, t.storage); sv != noVertex {
				r.store(sv, s)
				r.to(sv, label(kindStorage, 0))
			}
		}
	}
	if t.meta == 0 {
		return
	}
	m := r.mem.bytes(t.meta, metaGraph+16)
	if m == nil {
		return
	}
	grad, node, counts := word(m[metaGrad:]), word(m[metaGraph:]), word(m[metaGraph+8:])
	required := &r.impls[len(r.impls)-1].required
	*required = node != 0
	if flag := r.torch.required; flag != 0 && node == 0 {
		if b := r.mem.bytes(t.meta+uint64(flag), 1); b != nil {
			*required = b[0] == 1
		}
	}
	if r.isImpl(grad) {
		r.to(r.addExtra(extraImpl, grad), label(kindGrad, 0))
	}
	if _, ok := r.cpp.nodeName(node); ok {
		if r.cpp.owners(counts) == 1 && r.cpp.owners(at) == 1 {
			r.visited[node] = true
		}
		r.to(r.addExtra(extraNode, node), label(kindGraph, 0))
	}
	// A view's AutogradMeta goes on with its base. After another one's end come words of what lay there before.
	if !strings.Contains(r.cpp.className(r.mem.word(t.meta)), "DifferentiableViewMeta") {
		return
	}
	words := r.cpp.chunk(t.meta)
	for _, w := range words[min(len(words), metaGraph/8+2):] {
		if w != grad && w != at && r.isImpl(w) {
			r.to(r.addExtra(extraImpl, w), label(kindBase, 0))
		}
	}
}

// confirmStorages reads each storage again, and drops those that are gone or have changed: what is read of
// memory that was freed may be any size.
func (r *references) confirmStorages() {
	r.mem.forget()
	n := len(r.storages)
	r.storages = slices.DeleteFunc(r.storages, func(s storageImpl) bool { // neighbours in the list are neighbours in memory, and read together
		e, _ := r.extra(s.vertex)
		now, ok := s, true
		switch e.kind {
		case extraStorage:
			now, ok = r.torch.readStorage(r.mem, e.address)
			ok = ok && strings.Contains(r.cpp.className(r.mem.word(e.address)), "StorageImpl")
		case extraCuPy:
			now, ok = r.cupyMemory(e.address)
		}
		now.vertex = s.vertex
		return !ok || now != s
	})
	r.lost.Add(tensorsUnfit, uint64(n-len(r.storages)))
}

// isImpl tells whether there is a TensorImpl at an address.
func (r *references) isImpl(at uint64) bool {
	if at&7 != 0 || at < pageSize || at >= maxAddress {
		return false
	}
	if _, ok := r.tensor(r.extraAt[at]); ok { // without an entry this is no extra
		return true
	}
	name := r.cpp.className(r.mem.word(at))
	if !strings.Contains(name, "Tensor") || !strings.Contains(name, "Impl") || strings.Contains(name, "Undefined") {
		return false
	}
	_, ok := r.torch.readImpl(r.mem, at)
	return ok
}
