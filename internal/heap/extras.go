package heap

// An extra is a vertex that is no object of Python's collector.
type extra struct {
	address uint64
	kind    extraKind
	at      uint32 // one more than its index in impls or, until confirmStorages, in storages; 0 for none
}

type extraKind uint8

const (
	extraFrame   extraKind = iota
	extraImpl              // TensorImpl
	extraStorage           // StorageImpl
	extraCuPy              // what CuPy has for memory
	extraNumba             // the same of Numba
	extraNode              // of an autograd graph
)

// maxExtras bounds all of them.
const maxExtras = 1 << 20

// addExtra returns the vertex of an extra, or noVertex, which it counts. What is at one address is of one kind.
func (r *references) addExtra(kind extraKind, address uint64) vertex {
	if v, ok := r.extraAt[address]; ok {
		if e, _ := r.extra(v); e.kind == kind {
			return v
		}
		r.lost.Add(tensorsUnfit, 1)
		return noVertex
	}
	if len(r.extras) >= maxExtras {
		r.lost.Add(objectsUnread, 1)
		return noVertex
	}
	v := vertex(len(r.objects.address) + len(r.extras))
	r.extras = append(r.extras, extra{address: address, kind: kind})
	r.extraAt[address] = v
	return v
}

// extra returns what a vertex is that is no object.
func (r *references) extra(v vertex) (extra, bool) {
	if n := vertex(len(r.objects.address)); v >= n && int(v-n) < len(r.extras) {
		return r.extras[v-n], true
	}
	return extra{}, false
}

// store notes what memory a vertex is.
func (r *references) store(v vertex, s storageImpl) {
	s.vertex = v
	if n := len(r.objects.address); int(v) >= n {
		at := &r.extras[int(v)-n].at
		if *at != 0 {
			r.storages[*at-1] = s
			return
		}
		*at = uint32(len(r.storages)) + 1
	}
	r.storages = append(r.storages, s)
}

// tensor returns what is kept of the TensorImpl that a vertex is, if it was read.
func (r *references) tensor(v vertex) (t tensor, ok bool) {
	if e, ok := r.extra(v); ok && e.kind == extraImpl && e.at != 0 {
		return r.impls[e.at-1], true
	}
	return t, false
}

func (r *references) isNode(v vertex) bool {
	e, ok := r.extra(v)
	return ok && e.kind == extraNode
}

// gatherExtras reads the references of all extras, and of those that they lead to.
func (r *references) gatherExtras() {
	n := len(r.objects.address)
	r.maxEdges += edgesEach*len(r.extras) + edgesMore // whatever the objects took
	for i := 0; i < len(r.extras); i++ {
		r.start = append(r.start, uint32(len(r.edges)))
		if !r.mem.tick() || len(r.edges) >= r.maxEdges {
			r.lost.Add(objectsUnread, 1)
			continue
		}
		r.maxOfOne = len(r.edges) + n + edgesOfOne
		switch e := r.extras[i]; e.kind {
		case extraFrame:
			r.locals(e.address)
		case extraImpl:
			r.implReferences(vertex(n+i), e.address)
		case extraNode:
			r.nodeReferences(e.address)
		}
	}
	r.start = append(r.start, uint32(len(r.edges)))
	r.extraAt, r.objectOf, r.visited = nil, nil, nil
}
