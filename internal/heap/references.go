package heap

import (
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

// Bounds of what one object may have.
const (
	maxItems  = 1 << 24
	maxChunk  = 8 << 10 // words that are read at once
	maxBlocks = 1 << 18 // of a deque
	maxKeys   = 1 << 20 // different ones of all objects
)

// edgesEach bounds the references of all objects by their number, and edgesMore is how many
// there may be besides. An object that is read while it changes may claim to have any
// number: it may have as many as there are objects, and some.
const (
	edgesEach  = 8
	edgesMore  = 1 << 20
	edgesOfOne = 1 << 16
)

// references are what objects, frames, tensors and autograd nodes refer to.
type references struct {
	py   *objectReader
	mem  *cache
	lay  *layout
	lost *loss.Set

	objects  objects
	start    []uint32 // of the edges of each vertex, and their end
	edges    []edge
	maxEdges int // as far as has been read
	maxOfOne int // of the object that is read
	keys     keys

	extras  []extra
	extraAt map[uint64]vertex
	frames  []frame
	dummies map[uint64]uint64 // threads by their objects in the tables of threading.local, 0 as long as none is known

	torch     *torchLayout // nil without tensors
	framework string       // of arrays
	cpp       cppReader
	impls     []tensor
	storages  []storageImpl
	arrays    map[vertex]array  // of JAX, each of which is its storage too, of CuPy and of Numba
	objectOf  map[vertex]vertex // the object of an impl
	// visited are nodes whose Python object the garbage collector visits from a tensor: nobody else owns
	// the node, nor the tensor.
	visited map[uint64]bool
}

// maxRoom bounds for how many tensors there is room at once: a forged heap may have any number.
const maxRoom = 1 << 17

func newReferences(py *objectReader, o objects, torch *torchLayout, tensors int, shown Keys) *references {
	tensors = min(tensors, maxRoom)
	return &references{
		py: py, mem: py.mem, lay: py.lay, lost: py.lost, objects: o,
		keys:   keys{py: py, shown: shown, address: make([]uint64, 1), indices: map[uint64]uint32{}},
		extras: room[extra](py.arena, 2*tensors)[:0], extraAt: make(map[uint64]vertex, 2*tensors), dummies: map[uint64]uint64{},
		torch: torch, cpp: cppReader{mem: py.mem, vtables: map[uint64]string{}},
		impls: make([]tensor, 0, tensors), storages: room[storageImpl](py.arena, tensors)[:0], arrays: map[vertex]array{}, objectOf: make(map[vertex]vertex, tensors),
		visited: map[uint64]bool{},
	}
}

// gather reads the references of all objects.
func (r *references) gather() {
	n := len(r.objects.address)
	r.start = room[uint32](r.py.arena, n+n/8+1)[:0]
	r.edges = room[edge](r.py.arena, 2*n+1)[:0]
	r.maxEdges = edgesEach*n + edgesMore
	for i := range n {
		r.start = append(r.start, uint32(len(r.edges)))
		if !r.mem.tick() || len(r.edges) >= r.maxEdges {
			r.lost.Add(objectsUnread, 1)
			continue
		}
		r.maxOfOne = len(r.edges) + n + edgesOfOne
		r.object(vertex(i))
	}
}

// to adds a reference to a vertex.
func (r *references) to(v vertex, l uint32) {
	if v != noVertex && len(r.edges) < min(r.maxEdges, r.maxOfOne) {
		if len(r.edges) == cap(r.edges) {
			r.edges = resized(r.py.arena, r.edges, 2*cap(r.edges))
		}
		r.edges = append(r.edges, edge{v, l})
	}
}

// refer adds a reference to whatever is at an address. One that counts is known to
// be a reference that the object at its end counts.
func (r *references) refer(address uint64, l uint32, counts bool) {
	if to, ok := r.objects.find(address); ok {
		if counts {
			r.objects.found(to)
		}
		r.to(to, l)
	}
}

// named adds a reference by a name of ours or of a type's.
func (r *references) named(at uint64, name string) {
	r.refer(r.mem.word(at), label(kindName, int(r.py.names.index(name))), true)
}

// object adds what an object refers to.
func (r *references) object(v vertex) {
	at := r.objects.address[v]
	c := &r.py.classes[r.objects.class[v]]
	if r.mem.word(at+8) != c.address {
		r.lost.Add(objectsGone, 1) // another object is there by now
		return
	}
	if c.flags&flagHeapType != 0 && (r.lay.minor > 8 || c.shape == shapePlain || c.shape == shapeTensor) {
		r.refer(c.address, label(kindClass, 0), true)
	}
	m, l := r.mem, r.lay
	switch c.shape {
	case shapeDict:
		r.dict(at, kindKey)
		if c.basic > dictSize && c.flags&flagHeapType == 0 {
			r.hidden(at, dictSize, min(c.basic, maxOpaque))
		}
	case shapeList:
		if n := m.word(at + 16); n <= m.word(at+32) {
			r.items(m.word(at+24), n)
		} else {
			r.lost.Add(containersForged, 1)
		}
	case shapeTuple:
		r.items(at+24, m.word(at+16))
	case shapeSet:
		r.set(at)
	case shapeDeque:
		r.deque(at)
	case shapeFunction:
		r.function(at)
	case shapeCell, shapeMapping:
		r.refer(m.word(at+16), label(kindHidden, 2), true)
	case shapeModule:
		r.refer(m.word(at+16), label(kindDict, 0), true)
	case shapeMethod:
		r.named(at+16, "__func__")
		r.named(at+24, "__self__")
	case shapePartial:
		r.named(at+16, "func")
		r.named(at+24, "args")
		r.named(at+32, "keywords")
		r.named(at+40, "__dict__")
	case shapeCache:
		r.lruCache(at, c)
	case shapeGenerator:
		r.generator(at)
	case shapeFrame:
		r.frameObject(at)
	case shapeTraceback:
		r.named(at+16, "tb_next")
		r.named(at+24, "tb_frame")
	case shapeException:
		r.refer(m.word(at+16), label(kindDict, 0), true)
		r.named(at+24, "args")
		r.named(at+uint64(l.traceback), "__traceback__")
		r.named(at+uint64(l.context), "__context__")
		r.named(at+uint64(l.cause), "__cause__")
		if c.basic > 72 {
			r.hidden(at, l.cause+8, min(c.basic, maxOpaque))
		}
	case shapeType:
		r.typeObject(at)
	case shapeTensor:
		r.tensorReferences(v, at)
	case shapeVariable:
		r.refer(m.word(at+variableDefault), label(kindHidden, 0), true)
	case shapeContext:
		r.contextValues(at, c)
	case shapeLocal:
		r.hidden(at, 16, min(c.basic, maxOpaque))
		r.threadLocals(at, c)
	case shapeTask:
		r.hidden(at, 16, min(c.basic, maxOpaque))
		r.coroutine(at, c)
	case shapeNone:
		return
	}
	r.attributes(at, c)
	for _, s := range c.slots {
		r.refer(m.word(at+uint64(s.at)), label(kindName, int(s.label)), c.flags&flagHeapType != 0)
	}
	if c.opaque[1] > c.opaque[0] {
		r.opaque(at, c)
	}
	if c.jax {
		r.jaxArray(v, at, c)
	}
	if c.numba {
		r.numbaArray(v, at)
	}
	if c.module && r.torch != nil && shortName(c.name) == "DistributedDataParallel" {
		r.reducer(at, c)
	}
	if c.cupy == isCuPyArray || c.cupy == isCuPyPointer {
		r.cupyObject(v, at, c)
	}
	if (c.node || c.function) && r.torch != nil && c.basic <= maxOpaque {
		n := newNodeReader(r, at)
		n.words(m.words(at+16, (c.basic-16)/8), 0, c.node)
	}
}

// attributes adds those of an instance.
func (r *references) attributes(at uint64, c *class) {
	if c.shape == shapeType || c.shape == shapeModule || c.shape == shapePartial || c.shape == shapeFunction || c.shape == shapeException {
		return
	}
	dict, values := r.py.instance(at, c)
	if dict != 0 {
		r.refer(dict, label(kindDict, 0), true)
	} else if values != 0 && c.cachedKeys != 0 {
		r.entries(c.cachedKeys, values, kindAttr)
	}
}

// opaque adds the words of an extension's structure that point at objects. Nobody
// says whether they count.
func (r *references) opaque(at uint64, c *class) {
	b := r.mem.bytes(at, c.opaque[1])
	if b == nil {
		return
	}
	for o := c.opaque[0]; o+8 <= len(b); o += 8 {
		if o == c.weakList || int64(o) == c.dictAt {
			continue
		}
		known := false
		for _, s := range c.slots {
			known = known || s.at == o
		}
		if !known {
			r.refer(word(b[o:]), label(kindHidden, 0), false)
		}
	}
}

func (r *references) hidden(at uint64, from, to int) {
	b := r.mem.bytes(at, to)
	for o := from; o+8 <= len(b); o += 8 {
		r.refer(word(b[o:]), label(kindHidden, 0), false)
	}
}

func (r *references) function(at uint64) {
	l := r.lay
	b := r.mem.bytes(at, l.funcSize)
	if b == nil {
		return
	}
	globals, closure := word(b[l.funcGlobals:]), word(b[l.funcClosure:])
	defaults, kwDefaults, dict := word(b[l.funcDefaults:]), word(b[l.funcKwDefaults:]), word(b[l.funcDict:])
	r.refer(globals, label(kindHidden, 1), true)
	r.refer(defaults, label(kindName, int(r.py.names.index("__defaults__"))), true)
	r.refer(kwDefaults, label(kindName, int(r.py.names.index("__kwdefaults__"))), true)
	r.refer(dict, label(kindDict, 0), true)
	r.refer(closure, label(kindClosure, 0), true)
}

func (r *references) typeObject(at uint64) {
	r.refer(r.mem.word(at+typeDict), label(kindDict, 0), true)
	r.refer(r.mem.word(at+typeBase), label(kindHidden, 0), true)
	r.refer(r.mem.word(at+typeMRO), label(kindHidden, 0), true)
}
