package heap

import "strconv"

// ctypesPointer is where an object of ctypes has the address of its value, which is in it.
const ctypesPointer = 16

// numbaArray adds an array of Numba. Its gpu_data is the memory, or it has the memory of which it is a part.
func (r *references) numbaArray(v vertex, at uint64) {
	a, bytes, ok := r.readAval(at)
	memory := r.member(at, "gpu_data")
	if whole := r.member(memory, "_mem"); whole != 0 {
		memory = whole
	}
	pointer, size := r.member(memory, "device_pointer"), r.py.text(r.member(memory, "size"))
	s := storageImpl{bytes: uint64(integer(size))}
	value := r.mem.word(pointer + ctypesPointer)
	if value > pointer && value < pointer+uint64(r.py.typeOf(pointer).basic) {
		s.data = r.mem.word(value)
	}
	device := integer(r.py.text(r.member(memory, "context", "device", "id")))
	if !ok || integer(size) < 0 || bytes > s.bytes || s.bytes > maxTensorBytes || s.data == 0 || s.data >= maxAddress || device < 0 || device >= maxDevices {
		r.lost.Add(tensorsUnfit, 1)
		return
	}
	s.device = int32(device)
	if to := r.addExtra(extraStorage, memory); to != noVertex && bytes > 0 {
		r.framework, r.arrays[v], r.storages[to] = "Numba", a, s
		r.to(to, label(kindStorage, 0))
	}
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
