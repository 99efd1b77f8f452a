package record

// A numbering gives keys numbers from 0 on, in the order in which they come up.
// Hashes of keys are seeded: no traced process can choose keys that collide.
type numbering[K comparable] struct {
	slots []uint16 // number + 1, 0 for none
	keys  []K
	shift uint8
}

// newNumbers returns numbers for at most limit keys, a power of two of which
// the slots are twice as many.
func newNumbers[K comparable](limit int) numbering[K] {
	n := numbering[K]{slots: make([]uint16, 2*limit), keys: make([]K, 0, limit), shift: 64}
	for s := len(n.slots); s > 1; s >>= 1 {
		n.shift--
	}
	return n
}

func (n *numbering[K]) reset() {
	if len(n.keys) > 0 {
		clear(n.slots)
		n.keys = n.keys[:0]
	}
}

// full reports whether there is no room for a new key.
func (n *numbering[K]) full() bool { return len(n.keys) == cap(n.keys) }

// number returns the number of a key, and whether it came up before. The upper bits
// of hash count.
func (n *numbering[K]) number(hash uint64, key K) (number uint64, known bool) {
	mask := uint64(len(n.slots) - 1)
	for i := hash >> n.shift; ; i++ {
		s := n.slots[i&mask]
		if s == 0 {
			n.keys = append(n.keys, key)
			n.slots[i&mask] = uint16(len(n.keys))
			return uint64(len(n.keys) - 1), false
		}
		if n.keys[s-1] == key {
			return uint64(s - 1), true
		}
	}
}
