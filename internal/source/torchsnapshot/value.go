package torchsnapshot

import (
	"fmt"
	"math"
)

// A kind says what a value is.
type kind uint8

const (
	none kind = iota
	boolean
	integer
	real
	text
	list // a tuple, too
	dict
	mark // of the unpickler alone
)

var kindNames = [...]string{"None", "a truth value", "a whole number", "a number", "text", "a list", "a dictionary", "a mark"}

// A value is one value of a file: n is the number itself (of a real its bits), or where texts, lists
// or dictionaries have it. Values have no pointers, since a file may have some ten million.
type value struct {
	n    uint64
	kind kind
}

// An entry is a key and a value of a dictionary. Keys are texts.
type entry struct {
	n    uint64
	key  uint32
	kind kind
}

// A tree has the values of a file, in the order in which they came.
type tree struct {
	texts   []string
	numbers map[string]uint32 // of texts
	lists   [][]value
	dicts   [][]entry
}

func newTree() *tree { return &tree{numbers: map[string]uint32{}} }

func (t *tree) text(b []byte) value {
	n, ok := t.numbers[string(b)]
	if !ok {
		s := string(b)
		n = uint32(len(t.texts))
		t.texts = append(t.texts, s)
		t.numbers[s] = n
	}
	return value{uint64(n), text}
}

func (t *tree) list(items []value) value {
	t.lists = append(t.lists, items)
	return value{uint64(len(t.lists) - 1), list}
}

func (t *tree) dict() value {
	t.dicts = append(t.dicts, nil)
	return value{uint64(len(t.dicts) - 1), dict}
}

// set gives a dictionary a key.
func (t *tree) set(d, key, v value) error {
	if key.kind != text {
		return fmt.Errorf("a dictionary has %s as a key", kindNames[key.kind])
	}
	t.dicts[d.n] = append(t.dicts[d.n], entry{v.n, uint32(key.n), v.kind})
	return nil
}

// get returns what a dictionary has for a key, none if it lacks it.
func (t *tree) get(d value, key string) value {
	n, ok := t.numbers[key]
	if d.kind != dict || !ok {
		return value{}
	}
	for _, e := range t.dicts[d.n] {
		if e.key == n {
			return value{e.n, e.kind}
		}
	}
	return value{}
}

// items returns those of a list.
func (t *tree) items(v value) []value {
	if v.kind != list {
		return nil
	}
	return t.lists[v.n]
}

// String returns a text.
func (t *tree) string(v value) string {
	if v.kind != text {
		return ""
	}
	return t.texts[v.n]
}

// number returns a number that is not negative, 0 for others.
func (v value) number() uint64 {
	switch {
	case v.kind == integer && int64(v.n) > 0:
		return v.n
	case v.kind == real:
		if f := math.Float64frombits(v.n); f > 0 && f < 1<<63 {
			return uint64(f)
		}
	}
	return 0
}

func (v value) is() bool { return v.kind == boolean && v.n != 0 }
