package heap

import (
	"strconv"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
)

// ctypesPointer is where an object of ctypes has the address of its value, which is in it. An object of
// NVIDIA's bindings has its value there, and then the value's address.
const ctypesPointer = 16

// devicePointer returns the number that an object has that stands for an address, 0 for none.
func (r *references) devicePointer(at uint64) uint64 {
	w := r.mem.words(at+ctypesPointer, 2)
	switch {
	case len(w) < 2:
	case w[0] > at && w[0] < at+uint64(r.py.typeOf(at).basic):
		return r.mem.word(w[0])
	case w[1] == at+ctypesPointer:
		return w[0]
	}
	return 0
}

// numbaArray adds an array of Numba. Its gpu_data is the memory, or it has the memory of which it is a part.
func (r *references) numbaArray(v vertex, at uint64) {
	a, bytes, ok := r.readAval(at)
	memory := r.member(at, "gpu_data")
	if whole := r.member(memory, "_mem"); whole != 0 {
		memory = whole
	}
	pointer, size := r.member(memory, "device_pointer"), r.py.text(r.member(memory, "size"))
	s := storageImpl{data: r.devicePointer(pointer), bytes: uint64(integer(size))}
	device := integer(r.py.text(r.member(memory, "context", "device", "id")))
	if !ok || integer(size) < 0 || bytes > s.bytes || s.bytes > maxTensorBytes || s.data == 0 || s.data >= maxAddress || device < 0 || device >= maxDevices {
		r.lost.Add(tensorsUnfit, 1)
		return
	}
	s.device = int32(device)
	if to := r.addExtra(extraNumba, memory); to != noVertex && bytes > 0 {
		r.framework, r.arrays[v] = "Numba", a
		r.store(to, s)
		r.to(to, label(kindStorage, 0))
	}
}

// numbaPending reads what Numba frees some time after the last array is gone: a manager's queue of functions, of what
// they free and its size. The queue knows how much it has.
func (r *references) numbaPending(manager uint64) (out []holder.Storage, ok bool) {
	device := integer(r.py.text(r.member(manager, "context", "device", "id")))
	queue, sum := r.member(manager, "deallocations"), int64(0)
	ok = device >= 0 && device < maxDevices
	r.eachOfDeque(r.member(queue, "_cons"), func(_ int, item uint64) {
		w := r.mem.words(item+16, 4) // how many, and a tuple's first three
		ok = ok && len(w) == 4 && w[0] == 3 && r.py.typeOf(item).flags&flagTuple != 0
		if !ok {
			return
		}
		s := storageImpl{data: r.devicePointer(w[2]), bytes: uint64(integer(r.py.text(w[3]))), device: int32(device)}
		ok = s.bytes <= maxTensorBytes && len(out) < maxGPUBlocks
		sum += int64(min(s.bytes, maxTensorBytes))
		if name := r.functionName(w[1]); s.bytes > 0 && s.data > 0 && s.data < maxAddress && strings.HasPrefix(name, "cuMemFree") && !strings.Contains(name, "Host") {
			out = append(out, s.kept(holder.FreedLater))
		}
	})
	return out, ok && sum == integer(r.py.text(r.member(queue, "_size")))
}

// functionName returns the name that a function of Python has.
func (r *references) functionName(at uint64) string {
	if r.py.typeOf(at).shape != shapeFunction {
		return ""
	}
	return r.py.text(r.mem.word(at + uint64(r.lay.funcName()))).s
}

// member follows attributes by their names, through weak proxies. It returns 0 for none.
func (r *references) member(at uint64, names ...string) uint64 {
	for _, name := range names {
		at = r.py.instanceAttribute(at, r.py.typeOf(at), name)
		switch shortName(r.py.typeOf(at).name) {
		case "weakproxy", "weakcallableproxy", "ProxyType", "CallableProxyType":
			at = r.mem.word(at + weakReferent)
		}
	}
	return at
}

// integer returns the number that a text has, -1 if it is none.
func integer(t text) int64 {
	n, err := strconv.ParseInt(t.s, 10, 64)
	if t.kind != textInt || err != nil {
		return -1
	}
	return n
}
