package heap

import (
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

// An objectReader reads single objects of CPython, by the layout of its version.
type objectReader struct {
	mem     *cache
	lay     *layout
	runtime uint64
	lost    *loss.Set
	arena   *arena

	types   map[uint64]uint32 // index of classes by address
	classes []class
	names   names
}

func newObjectReader(m *cache, l *layout, runtime uint64) *objectReader {
	return &objectReader{
		mem: m, lay: l, runtime: runtime, lost: loss.New(losses), arena: &arena{}, types: map[uint64]uint32{},
		names: names{all: make([]string, 1), indices: map[string]uint32{}},
	}
}

// names numbers the names of attributes. Number 0 is none.
type names struct {
	all     []string
	indices map[string]uint32
}

// index returns the number of a name.
func (n *names) index(name string) uint32 {
	if i, ok := n.indices[name]; ok {
		return i
	}
	if len(n.all) >= maxKeys {
		return 0
	}
	i := uint32(len(n.all))
	n.all = append(n.all, name)
	n.indices[name] = i
	return i
}
