package heap

import (
	"cmp"
	"strings"
)

// A shape says where an object of a type has its references.
type shape uint8

const (
	shapePlain shape = iota // attributes alone, and words that nobody described
	shapeDict
	shapeList
	shapeTuple
	shapeSet
	shapeDeque
	shapeFunction
	shapeCell
	shapeModule
	shapeMethod
	shapeMapping
	shapePartial
	shapeCache // of functools.lru_cache
	shapeGenerator
	shapeFrame
	shapeTraceback
	shapeException
	shapeType
	shapeTensor
	shapeVariable // a context variable
	shapeContext  // a part of the values that a context has for its variables
	shapeLocal    // of threading.local
	shapeTask     // of asyncio
	shapeNone     // has no references that matter
)

// shapes are those of CPython's own types by name.
var shapes = map[string]shape{
	"dict": shapeDict, "list": shapeList, "tuple": shapeTuple, "set": shapeSet, "frozenset": shapeSet,
	"collections.deque": shapeDeque, "function": shapeFunction, "cell": shapeCell, "module": shapeModule,
	"method": shapeMethod, "mappingproxy": shapeMapping, "functools.partial": shapePartial,
	"functools._lru_cache_wrapper": shapeCache, "generator": shapeGenerator, "coroutine": shapeGenerator,
	"async_generator": shapeGenerator, "frame": shapeFrame, "traceback": shapeTraceback, "BaseException": shapeException,
	"ContextVar": shapeVariable, "_contextvars.ContextVar": shapeVariable,
	"hamt_bitmap_node": shapeContext, "hamt_collision_node": shapeContext, "_thread._local": shapeLocal, "_asyncio.Task": shapeTask,
	"type": shapeType, "torch._C._TensorBase": shapeTensor, "torch._C.TensorBase": shapeTensor,
	"weakref": shapeNone, "weakref.ReferenceType": shapeNone, "weakproxy": shapeNone, "weakref.ProxyType": shapeNone,
	"weakcallableproxy": shapeNone, "weakref.CallableProxyType": shapeNone,
	"getset_descriptor": shapeNone, "member_descriptor": shapeNone, "method_descriptor": shapeNone,
	"wrapper_descriptor": shapeNone, "classmethod_descriptor": shapeNone, "method-wrapper": shapeNone, "str": shapeNone, "int": shapeNone,
}

// A class is a type of the program.
type class struct {
	address    uint64
	name       string
	shape      shape
	flags      uint64
	basic      int
	dictAt     int64
	weakList   int
	cachedKeys uint64
	slots      []slot // named references
	opaque     [2]int // the words of an extension's structure, from and to
	module     bool   // a torch.nn.Module
	optimizer  bool   // a torch.optim.Optimizer
	node       bool   // Python's object of a node of an autograd graph
	function   bool   // the same for a node whose code is Python's
	jax        bool   // an array of JAX
	numba      bool   // an array of Numba
	manager    bool   // of Numba's memory
	cupy       cupyClass
}

type slot struct {
	at    int
	label uint32 // of names
}

const (
	noType    = ^uint32(0)
	maxTypes  = 1 << 16
	maxBases  = 48
	maxSlots  = 64
	maxOpaque = 1 << 10 // bytes
	maxName   = 200
)

// typeAt returns the index of the type at an address.
func (r *objectReader) typeAt(address uint64) uint32 {
	if i, ok := r.types[address]; ok {
		return i
	}
	if len(r.classes) >= maxTypes {
		return noType
	}
	i := noType
	if c, ok := r.readClass(address); ok {
		i = uint32(len(r.classes))
		r.classes = append(r.classes, c)
	}
	if i != noType || len(r.types) < 2*maxTypes {
		r.types[address] = i
	}
	return i
}

// typeOf returns the type of an object, an empty one for what is none.
func (r *objectReader) typeOf(at uint64) *class {
	if t := r.typeAt(r.mem.word(at + 8)); t != noType {
		return &r.classes[t]
	}
	return &class{}
}

func (r *objectReader) readClass(address uint64) (class, bool) {
	if address&7 != 0 || address < pageSize {
		return class{}, false
	}
	name, ok := r.className(address)
	if !ok {
		return class{}, false
	}
	c := class{address: address, name: name}
	c.flags = r.mem.word(address + typeFlags)
	basic := int64(r.mem.word(address + typeBasic))
	if basic < 16 || basic > 1<<20 {
		return class{}, false
	}
	c.basic = int(basic)
	c.dictAt = int64(r.mem.word(address + typeDictAt))
	if w := int64(r.mem.word(address + typeWeakList)); w > 0 && w < basic {
		c.weakList = int(w)
	}
	if c.flags&flagHeapType != 0 {
		c.cachedKeys = r.mem.word(address + uint64(r.lay.cachedKeys))
	}
	opaqueTo := 0
	seen := map[int]bool{}
	base := address
	for range maxBases {
		baseName, ok := r.className(base)
		if !ok {
			break
		}
		flags := r.mem.word(base + typeFlags)
		if flags&flagType != 0 && c.shape == shapePlain {
			c.shape = shapeType
		}
		if s, ok := shapes[baseName]; ok && c.shape == shapePlain && !(flags&flagHeapType != 0 && !strings.Contains(baseName, ".")) {
			c.shape = s
		}
		if c.shape == shapePlain || c.shape == shapeTensor {
			c.slots = r.members(c.slots, base, seen)
			own := int(min(r.mem.word(base+typeBasic), maxOpaque))
			if baseName != "object" {
				opaqueTo = max(opaqueTo, own)
			}
		} else if flags&flagHeapType != 0 {
			c.slots = r.members(c.slots, base, seen)
		}
		if strings.HasSuffix(baseName, "ArrayImpl") && strings.HasPrefix(baseName, "jaxlib") || baseName == "ArrayImpl" {
			c.jax = true
		}
		base = r.mem.word(base + typeBase)
		if base == 0 {
			break
		}
	}
	if c.shape == shapePlain {
		c.opaque = [2]int{16, opaqueTo}
	}
	if c.shape == shapeTensor {
		c.opaque = [2]int{24, opaqueTo}
	}
	r.mark(&c)
	return c, true
}

// className returns the last part of a type's name, or all of it for one of an
// extension.
func (r *objectReader) className(address uint64) (string, bool) {
	at := r.mem.word(address + typeName)
	if at == 0 {
		return "", false
	}
	name := r.mem.text(at, maxName)
	for _, ch := range []byte(name) {
		if ch < ' ' || ch == 0x7f {
			return "", false
		}
	}
	return name, name != ""
}

// members appends the slots that a type describes.
func (r *objectReader) members(slots []slot, t uint64, seen map[int]bool) []slot {
	const size, typeObject, typeObjectEx = 40, 6, 16
	at := r.mem.word(t + typeMembers)
	if at == 0 {
		return slots
	}
	for ; len(slots) < maxSlots; at += size {
		b := r.mem.bytes(at, size)
		if b == nil || word(b) == 0 {
			break
		}
		kind, offset, name := uint32(word(b[8:])), int64(word(b[16:])), word(b)
		if kind != typeObject && kind != typeObjectEx || offset < 16 || offset > 1<<16 || offset&7 != 0 || seen[int(offset)] {
			continue
		}
		seen[int(offset)] = true
		if text := r.mem.text(name, maxName); text != "" {
			slots = append(slots, slot{int(offset), r.names.index(text)})
		}
	}
	return slots
}

// mark looks for classes of PyTorch among the bases.
func (r *objectReader) mark(c *class) {
	mro := r.mem.word(c.address + typeMRO)
	if mro == 0 {
		return
	}
	n := min(r.mem.word(mro+16), maxBases)
	for _, t := range r.mem.words(mro+24, int(n)) {
		name, ok := r.className(t)
		if !ok {
			continue
		}
		c.cupy = cmp.Or(c.cupy, cupyClasses[name])
		switch name {
		case "Module":
			c.module = c.module || r.moduleOfType(t) == "torch.nn.modules.module"
		case "Optimizer":
			c.optimizer = c.optimizer || r.moduleOfType(t) == "torch.optim.optimizer"
		case "DeviceNDArray":
			c.numba = c.numba || r.moduleOfType(t) == "numba.cuda.cudadrv.devicearray"
		case "BaseCUDAMemoryManager":
			c.manager = c.manager || r.moduleOfType(t) == "numba.cuda.cudadrv.driver"
		case "torch._C._FunctionBase":
			c.function = true
		}
	}
	if c.flags&flagHeapType == 0 && (strings.Contains(c.name, "Backward") || c.name == "AccumulateGrad" || c.name == "CppFunction") {
		c.node = true
	}
}

// moduleOfType returns the name of the module that a type was made in, "" if it does not say. It reads
// no types: the one that asks is being read.
func (r *objectReader) moduleOfType(t uint64) (name string) {
	read := func(at uint64) string {
		b := r.mem.bytes(at, 40)
		if b == nil {
			return ""
		}
		return r.str(at, word(b[16:]), uint32(word(b[32:]))).s
	}
	r.eachItem(r.mem.word(t+typeDict), func(key, value uint64) bool {
		if read(key) != "__module__" {
			return true
		}
		name = read(value)
		return false
	})
	return name
}

// shortName returns a type's name without its module.
func shortName(name string) string { return name[strings.LastIndexByte(name, '.')+1:] }
