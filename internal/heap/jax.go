package heap

import (
	"math"
	"math/bits"
	"strconv"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
)

// An array is one of JAX, as its aval describes it. Where its memory lies is known to C++
// alone.
type array struct {
	shape []int64
	dtype string
}

// dtypeType is where an object of numpy.dtype has the type of one number. Each version of
// NumPy has it there (PyArray_Descr).
const dtypeType = 16

// jaxArray adds an array of JAX. Its aval is an attribute, or a word of the extension's
// structure (PyArrayObject of jaxlib).
func (r *references) jaxArray(v vertex, at uint64, c *class) {
	aval := r.py.instanceAttribute(at, c, "aval")
	for o := c.opaque[0]; aval == 0 && o+8 <= c.opaque[1]; o += 8 {
		if w := r.mem.word(at + uint64(o)); r.isAval(w) {
			aval = w
		}
	}
	a, bytes, ok := r.readAval(aval)
	if !ok {
		r.lost.Add(tensorsUnfit, 1)
		return
	}
	if bytes == 0 {
		return
	}
	r.framework, r.arrays[v] = "JAX", a
	r.store(v, storageImpl{bytes: bytes, device: holder.UnknownDevice})
}

// isAval tells whether there is an object at an address that describes an array.
func (r *references) isAval(at uint64) bool {
	v, ok := r.objects.find(at)
	return ok && shortName(r.py.classes[r.objects.class[v]].name) == "ShapedArray"
}

// readAval reads the shape and the type of numbers, and how many bytes that makes.
func (r *references) readAval(at uint64) (a array, bytes uint64, ok bool) {
	v, ok := r.objects.find(at)
	if !ok {
		return a, 0, false
	}
	c := &r.py.classes[r.objects.class[v]]
	shape, dtype := r.py.instanceAttribute(at, c, "shape"), r.py.instanceAttribute(at, c, "dtype")
	t := r.py.typeAt(r.mem.word(shape + 8))
	if shape == 0 || t == noType || r.py.classes[t].flags&flagTuple == 0 {
		return a, 0, false
	}
	dims := r.mem.word(shape + 16)
	name, named := r.py.className(r.mem.word(dtype + dtypeType))
	if dtype == 0 || !named || dims > maxDims {
		return a, 0, false
	}
	a.dtype, bytes = numberType(shortName(name))
	for _, d := range r.mem.words(shape+24, int(dims)) {
		text := r.py.text(d)
		n, err := strconv.ParseInt(text.s, 10, 64)
		if text.kind != textInt || err != nil || n < 0 {
			return a, 0, false
		}
		high, low := bits.Mul64(bytes, uint64(n))
		if high != 0 || low > math.MaxInt64 {
			return a, 0, false
		}
		a.shape, bytes = append(a.shape, n), low
	}
	return a, bytes, bytes <= maxTensorBytes && len(a.shape) == int(dims) && a.dtype != ""
}

// numberType returns the name that a type of NumPy's has as a type of numbers, and how many
// bytes a number has. The name begins with the bits: bfloat16, float8_e4m3fn, int4.
func numberType(name string) (string, uint64) {
	if name == "bool" || name == "bool_" {
		return "bool", 1
	}
	digits := strings.TrimLeft(name, "abcdefghijklmnopqrstuvwxyz")
	digits, _, _ = strings.Cut(digits, "_")
	n, err := strconv.ParseUint(digits, 10, 8)
	if err != nil || len(name) > 32 {
		return "", 0
	}
	return name, (n + 7) / 8
}
