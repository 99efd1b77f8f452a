// Package pickletest reads pickles as PyTorch's memory viewer does: by the opcodes that
// it knows and no others, and with no more arguments to a call than a browser takes.
package pickletest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"
)

// maxItems is how many items a viewer adds to a list at once without harm.
const maxItems = 1000

type mark struct{}

// A List is a Python list, which whoever refers to it shares.
type List struct{ Items []any }

// A Dict is a Python dict with strings for keys.
type Dict struct{ Items map[string]any }

// A Tuple is a Python tuple.
type Tuple []any

// Decode returns the value that b holds: nil, bool, int64, string, *List, *Dict or Tuple.
func Decode(b []byte) (any, error) {
	d := decoder{rest: b}
	for d.err == nil {
		if op := d.bytes(1); d.err == nil && d.step(op[0]) {
			break
		}
	}
	switch {
	case d.err != nil:
		return nil, fmt.Errorf("at byte %d: %w", len(b)-len(d.rest), d.err)
	case len(d.stack) != 1 || len(d.rest) != 0:
		return nil, fmt.Errorf("%d values and %d bytes are left", len(d.stack), len(d.rest))
	}
	return d.stack[0], nil
}

type decoder struct {
	rest  []byte
	stack []any
	memo  []any
	err   error
}

var errShort = errors.New("it ends too early")

func (d *decoder) bytes(n int) []byte {
	if n > len(d.rest) {
		d.err = errShort
		return make([]byte, n)
	}
	b := d.rest[:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) push(v any) { d.stack = append(d.stack, v) }

func (d *decoder) pop() (v any) {
	if len(d.stack) == 0 {
		d.err = errors.New("nothing is left to take")
		return nil
	}
	v, d.stack = d.stack[len(d.stack)-1], d.stack[:len(d.stack)-1]
	return v
}

// marked returns what is above the last mark.
func (d *decoder) marked() []any {
	for i, v := range slices.Backward(d.stack) {
		if _, ok := v.(mark); ok {
			items := append([]any(nil), d.stack[i+1:]...)
			d.stack = d.stack[:i]
			return items
		}
	}
	d.err = errors.New("no mark")
	return nil
}

func (d *decoder) text(n int) {
	s := string(d.bytes(n))
	if !utf8.ValidString(s) {
		d.err = fmt.Errorf("%q is not UTF-8", s)
	}
	d.push(s)
}

func (d *decoder) get(i int) {
	if i >= len(d.memo) {
		d.err = fmt.Errorf("number %d of %d is not remembered", i, len(d.memo))
		return
	}
	d.push(d.memo[i])
}

// step carries out one opcode, and tells whether it was the last.
func (d *decoder) step(op byte) (over bool) {
	switch op {
	case 0x80: // PROTO
		if v := d.bytes(1)[0]; v < 2 || v > 4 {
			d.err = fmt.Errorf("protocol %d", v)
		}
	case '.': // STOP
		return true
	case '(': // MARK
		d.push(mark{})
	case 'N': // NONE
		d.push(nil)
	case 0x88: // NEWTRUE
		d.push(true)
	case 0x89: // NEWFALSE
		d.push(false)
	case 'J': // BININT
		d.push(int64(int32(binary.LittleEndian.Uint32(d.bytes(4)))))
	case 'K': // BININT1
		d.push(int64(d.bytes(1)[0]))
	case 'M': // BININT2
		d.push(int64(binary.LittleEndian.Uint16(d.bytes(2))))
	case 0x8a: // LONG1
		n := int(d.bytes(1)[0])
		if n == 0 || n > 8 {
			d.err = fmt.Errorf("an integer of %d bytes", n)
			return false
		}
		var v int64
		b := d.bytes(n)
		for i := range b {
			v |= int64(b[i]) << (8 * i)
		}
		shift := 64 - 8*n
		d.push(v << shift >> shift)
	case 0x8c: // SHORT_BINUNICODE
		d.text(int(d.bytes(1)[0]))
	case 'X': // BINUNICODE
		d.text(int(binary.LittleEndian.Uint32(d.bytes(4))))
	case ']': // EMPTY_LIST
		d.push(&List{})
	case '}': // EMPTY_DICT
		d.push(&Dict{map[string]any{}})
	case 'e', 'u': // APPENDS, SETITEMS
		items := d.marked()
		if len(d.stack) > 0 {
			d.add(op, d.stack[len(d.stack)-1], items)
		}
	case 0x86: // TUPLE2
		b, a := d.pop(), d.pop()
		d.push(Tuple{a, b})
	case 0x94: // MEMOIZE
		v := d.pop()
		d.push(v)
		d.memo = append(d.memo, v)
	case 'h': // BINGET
		d.get(int(d.bytes(1)[0]))
	case 'j': // LONG_BINGET
		d.get(int(binary.LittleEndian.Uint32(d.bytes(4))))
	default:
		d.err = fmt.Errorf("opcode %#x", op)
	}
	return false
}

func (d *decoder) add(op byte, to any, items []any) {
	list, isList := to.(*List)
	dict, isDict := to.(*Dict)
	switch {
	case op == 'e' && isList && len(items) <= maxItems:
		list.Items = append(list.Items, items...)
	case op == 'u' && isDict && len(items) <= 2*maxItems && len(items)%2 == 0:
		for i := 0; i < len(items); i += 2 {
			key, ok := items[i].(string)
			if _, there := dict.Items[key]; !ok || there {
				d.err = fmt.Errorf("key %#v", items[i])
				return
			}
			dict.Items[key] = items[i+1]
		}
	default:
		d.err = fmt.Errorf("%d items for a %T", len(items), to)
	}
}

// Plain returns v as encoding/json has it, with int64 for numbers: slices for lists
// and tuples, and maps for dicts.
func Plain(v any) any {
	slice := func(items []any) any {
		out := make([]any, len(items))
		for i := range items {
			out[i] = Plain(items[i])
		}
		return out
	}
	switch v := v.(type) {
	case *List:
		return slice(v.Items)
	case Tuple:
		return slice(v)
	case *Dict:
		out := make(map[string]any, len(v.Items))
		for key, item := range v.Items {
			out[key] = Plain(item)
		}
		return out
	}
	return v
}
