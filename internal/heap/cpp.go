package heap

import (
	"strings"
)

// A cppReader reads objects of C++, which say their class in their table of virtual
// functions.
type cppReader struct {
	mem     *cache
	vtables map[uint64]string // names of classes
}

// className returns the name of a C++ class as the compiler wrote it, by the
// address of its table of virtual functions.
func (r *cppReader) className(table uint64) string {
	if name, ok := r.vtables[table]; ok {
		return name
	}
	name := ""
	if table&7 == 0 && table > pageSize {
		if info := r.mem.word(table - 8); info > pageSize && info&7 == 0 && r.mem.word(table-16) == 0 {
			if at := r.mem.word(info + 8); at > pageSize {
				name = r.mem.text(at&^(1<<63), maxName)
				for _, c := range []byte(name) {
					if c < ' ' || c > '~' {
						name = ""
						break
					}
				}
			}
		}
	}
	if len(r.vtables) < 1<<16 {
		r.vtables[table] = name
	}
	return name
}

// nodeName returns the name of an autograd node, such as MulBackward0.
func (r *cppReader) nodeName(at uint64) (string, bool) {
	if at&7 != 0 || at < pageSize || at >= maxAddress {
		return "", false
	}
	name := r.className(r.mem.word(at))
	if !strings.Contains(name, "8autograd") && !strings.Contains(name, "Backward") {
		return "", false
	}
	last := lastName(name)
	switch {
	case strings.Contains(last, "Backward"), last == "AccumulateGrad", last == "PyNode", last == "CppNode", last == "CopySlices",
		last == "Error", last == "NotImplemented", last == "GraphRoot", last == "UndefinedGrad", last == "DelayedError",
		last == "Identity", last == "CopyBackwards":
		return last, true
	}
	return "", false
}

// lastName returns the last part of a nested C++ name without its namespaces:
// N5torch8autograd9generated12MulBackward0E is MulBackward0.
func lastName(s string) string {
	s = strings.TrimPrefix(s, "N")
	last := ""
	for len(s) > 0 && s[0] >= '0' && s[0] <= '9' {
		n := 0
		for len(s) > 0 && s[0] >= '0' && s[0] <= '9' && n < 1<<10 {
			n = 10*n + int(s[0]-'0')
			s = s[1:]
		}
		if n == 0 || n > len(s) {
			break
		}
		last, s = s[:n], s[n:]
	}
	return last
}

// Bounds of the memory of one object: words of a malloc chunk, and of one whose size is
// not known.
const (
	chunkWords   = 1 << 11
	unknownChunk = 32
)

// chunk returns the words of the malloc chunk at an address, as far as its header
// says how many it has. The counts of a shared pointer may come before the object.
func (r *cppReader) chunk(at uint64) []uint64 {
	const counts = 2
	n := int(r.mem.word(at-8)&^7)/8 - 1
	if n > chunkWords && strings.Contains(r.className(r.mem.word(at-8*counts)), "_Sp_counted_ptr_inplace") {
		n = int(r.mem.word(at-8*(counts+1))&^7)/8 - 1 - counts
	}
	if n < 2 || n > chunkWords {
		n = unknownChunk
	}
	return r.mem.words(at, n)
}

// allocated tells whether a malloc chunk at an address was asked for with a size.
func (r *cppReader) allocated(at, size uint64) bool {
	const head, least = 8, 24
	has := r.mem.word(at-8)&^7 - head
	return has >= size && has < size+least || size < least && has == least
}

// shared tells whether the counts of a shared pointer lie at an address, and somebody
// owns what it points at.
func (r *cppReader) shared(at uint64) bool {
	const most = 1 << 24
	owners := r.owners(at)
	return at&7 == 0 && owners > 0 && owners < most
}

// owners returns how many own what the counts at an address are of: those of a shared pointer, or a
// TensorImpl, which has its own.
func (r *cppReader) owners(at uint64) uint64 { return r.mem.word(at+8) & (1<<32 - 1) }
