// Package pickle writes values in the form that Python's pickle.load reads. It uses protocol 4
// and only the opcodes that PyTorch's memory viewer knows too. It writes each value at once, and
// remembers only the shared values.
package pickle

import (
	"bufio"
	"encoding/binary"
	"io"
	"math"
)

// Opcodes of Python's pickletools.
const (
	opProto      = 0x80
	opStop       = '.'
	opMark       = '('
	opTrue       = 0x88
	opFalse      = 0x89
	opInt        = 'J'  // 4 bytes, with a sign
	opInt1       = 'K'  // 1 byte
	opInt2       = 'M'  // 2 bytes
	opLong1      = 0x8a // as many bytes as the first says, with a sign
	opShortText  = 0x8c // UTF-8 of as many bytes as the first says
	opText       = 'X'  // of as many as the first four say
	opEmptyList  = ']'
	opAppends    = 'e'
	opEmptyDict  = '}'
	opSetItems   = 'u'
	opTuple2     = 0x86
	opMemoize    = 0x94
	opGet        = 'h' // 1 byte
	opLongGet    = 'j' // 4 bytes
	protocol     = 4
	batch        = 1000 // items that are added at once: the viewer passes each as an argument
	maxRemembers = 1 << 24
)

// A Writer writes one value: a List or a Dict. Close returns the first error.
type Writer struct {
	w      *bufio.Writer
	inside []container
	memo   map[any]uint32
}

// A container is being written.
type container struct {
	add   byte // the opcode that adds a batch to it
	items int  // of the batch so far; a key and its value are one each
	full  int
}

// New returns a Writer to w.
func New(w io.Writer) *Writer {
	p := &Writer{w: bufio.NewWriterSize(w, 64<<10), memo: map[any]uint32{}}
	p.op(opProto, protocol)
	return p
}

// Close ends the value. It does not close what is written to.
func (p *Writer) Close() error {
	p.op(opStop)
	return p.w.Flush()
}

func (p *Writer) op(b ...byte) { p.w.Write(b) }

// begin and end are around each value in a container.
func (p *Writer) begin() {
	if n := len(p.inside); n > 0 && p.inside[n-1].items == 0 {
		p.op(opMark)
	}
}

func (p *Writer) end() {
	if n := len(p.inside); n > 0 {
		c := &p.inside[n-1]
		if c.items++; c.items == c.full {
			p.op(c.add)
			c.items = 0
		}
	}
}

// Bool writes True or False.
func (p *Writer) Bool(v bool) {
	p.begin()
	if v {
		p.op(opTrue)
	} else {
		p.op(opFalse)
	}
	p.end()
}

// Int writes an integer. The viewer's numbers are exact to 2^53 only.
func (p *Writer) Int(v int64) {
	p.begin()
	p.integer(v)
	p.end()
}

func (p *Writer) integer(v int64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(v))
	switch {
	case v >= 0 && v <= math.MaxUint8:
		p.op(opInt1, b[0])
	case v >= 0 && v <= math.MaxUint16:
		p.op(opInt2, b[0], b[1])
	case v >= math.MinInt32 && v <= math.MaxInt32:
		p.op(opInt)
		p.op(b[:4]...)
	default:
		n := 8
		for n > 1 && (b[n-1] == 0 && b[n-2] < 0x80 || b[n-1] == 0xff && b[n-2] >= 0x80) {
			n-- // it follows from the sign
		}
		p.op(opLong1, byte(n))
		p.op(b[:n]...)
	}
}

// Pair writes a tuple of two integers.
func (p *Writer) Pair(a, b int64) {
	p.begin()
	p.integer(a)
	p.integer(b)
	p.op(opTuple2)
	p.end()
}

// String writes a string, which is valid UTF-8. Equal ones are written once.
func (p *Writer) String(s string) {
	if p.get(s) {
		return
	}
	p.begin()
	if n := len(s); n <= math.MaxUint8 {
		p.op(opShortText, byte(n))
	} else {
		p.op(opText)
		p.op(binary.LittleEndian.AppendUint32(nil, uint32(n))...)
	}
	p.w.WriteString(s)
	p.remember(s)
	p.end()
}

// List writes a list of what items writes. If key, which is no string, is not nil, the list
// is written once, and who reads it has one list for all uses of key.
func (p *Writer) List(key any, items func()) { p.shared(key, opEmptyList, opAppends, batch, items) }

// Dict writes a dict of what items writes: keys, each before its value. It is shared by key as
// a List is.
func (p *Writer) Dict(key any, items func()) { p.shared(key, opEmptyDict, opSetItems, 2*batch, items) }

func (p *Writer) shared(key any, empty, add byte, full int, items func()) {
	if key == nil || !p.get(key) {
		p.contain(key, empty, add, full, items)
	}
}

func (p *Writer) contain(key any, empty, add byte, full int, items func()) {
	p.begin()
	p.op(empty)
	p.inside = append(p.inside, container{add: add, full: full})
	items()
	last := len(p.inside) - 1
	if p.inside[last].items > 0 {
		p.op(add)
	}
	p.inside = p.inside[:last]
	if key != nil {
		p.remember(key)
	}
	p.end()
}

// remember stores the value that was just written under key.
func (p *Writer) remember(key any) {
	if len(p.memo) < maxRemembers {
		p.memo[key] = uint32(len(p.memo))
		p.op(opMemoize)
	}
}

// get writes the value that was remembered under key, and reports whether there is one.
func (p *Writer) get(key any) bool {
	i, ok := p.memo[key]
	if !ok {
		return false
	}
	p.begin()
	if i <= math.MaxUint8 {
		p.op(opGet, byte(i))
	} else {
		p.op(opLongGet)
		p.op(binary.LittleEndian.AppendUint32(nil, i)...)
	}
	p.end()
	return true
}
