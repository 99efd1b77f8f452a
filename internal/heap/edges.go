package heap

import (
	"encoding/binary"
	"slices"
)

func word(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }

// An edge is a reference, and how a programmer writes it.
type edge struct {
	to    vertex
	label uint32
}

// A label is a kind and what goes with it.
const (
	labelBits = 27
	labelMask = 1<<labelBits - 1
)

const (
	kindName   = iota + 1 // an attribute; a name of the program's structures
	kindAttr              // an attribute; a key of a dictionary of attributes
	kindKey               // [key]
	kindIndex             // [number]
	kindMember            // of a set
	kindKeyRef            // is a key itself
	kindDict              // the dictionary of attributes
	kindClosure
	kindHidden  // something that no programmer writes
	kindClass   // the type of the object
	kindLocal   // a local variable
	kindCached  // of lru_cache
	kindImpl    // of a tensor
	kindStorage // of a tensor
	kindGrad
	kindGraph    // grad_fn
	kindNext     // the next node, or what a node saved
	kindBase     // of a view
	kindObject   // of a tensor: Python's
	kindVariable // the value of a context variable
	kindThread   // what a threading.local has in a thread
	kindTask     // the coroutine of a task
)

func label(kind, n int) uint32 { return uint32(kind)<<labelBits | uint32(min(n, labelMask)) }

func kindOf(l uint32) int { return int(l >> labelBits) }

// keys numbers the keys of dictionaries. Number 0 is none.
type keys struct {
	py      *objectReader
	shown   Keys
	address []uint64 // of the object of each
	indices map[uint64]uint32
	texts   []text
}

// index returns the number of a key, by the address of its object.
func (k *keys) index(address uint64) int {
	if i, ok := k.indices[address]; ok {
		return int(i)
	}
	if len(k.address) >= maxKeys {
		return 0
	}
	i := uint32(len(k.address))
	k.address = append(k.address, address)
	k.indices[address] = i
	return int(i)
}

// text returns what a key says.
func (k *keys) text(key int) text {
	k.texts = slices.Grow(k.texts, len(k.address)-len(k.texts))
	for len(k.texts) < len(k.address) {
		k.texts = append(k.texts, text{kind: unread})
	}
	if t := &k.texts[key]; t.kind == unread {
		*t = k.py.text(k.address[key])
	}
	return k.texts[key]
}
