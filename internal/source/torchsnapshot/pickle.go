package torchsnapshot

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
)

// Opcodes of Python's pickletools.
const (
	opProto     = 0x80
	opFrame     = 0x95
	opStop      = '.'
	opMark      = '('
	opPop       = '0'
	opNone      = 'N'
	opTrue      = 0x88
	opFalse     = 0x89
	opInt4      = 'J'
	opInt1      = 'K'
	opInt2      = 'M'
	opInt       = 'I'
	opLong      = 'L'
	opLong1     = 0x8a
	opLong4     = 0x8b
	opFloat     = 'G'
	opShortText = 0x8c
	opText      = 'X'
	opLongText  = 0x8d
	opEmptyList = ']'
	opAppend    = 'a'
	opAppends   = 'e'
	opList      = 'l'
	opEmptyDict = '}'
	opSetItem   = 's'
	opSetItems  = 'u'
	opDict      = 'd'
	opEmptyTup  = ')'
	opTuple     = 't'
	opTuple1    = 0x85
	opTuple2    = 0x86
	opTuple3    = 0x87
	opMemoize   = 0x94
	opPut       = 'q'
	opLongPut   = 'r'
	opGet       = 'h'
	opLongGet   = 'j'
	opGlobal    = 'c'
	opStackGlob = 0x93
)

// refused are the opcodes by which a pickle asks for a class or a call.
var refused = map[byte]string{
	'i': "INST", 'o': "OBJ", 'R': "REDUCE", 'b': "BUILD", 0x81: "NEWOBJ", 0x92: "NEWOBJ_EX",
	0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4", 'P': "PERSID", 'Q': "BINPERSID", 0x97: "NEXT_BUFFER",
}

const (
	maxProtocol = 5
	maxDepth    = 1 << 20 // values on the stack
	maxText     = 1 << 20 // bytes
	// mostMemo bounds the numbers by which values are remembered.
	mostMemo = 1 << 26
)

// An unpickler runs a pickle. It knows dictionaries, lists, tuples, numbers and texts; nothing of
// it runs anything. Each byte of a file makes at most one value.
type unpickler struct {
	*tree
	r     *bufio.Reader
	stack []value
	marks []int // where on the stack they are
	memo  []value
	buf   []byte
}

// errEnd says that a file ends too early.
var errEnd = errors.New("it ends early")

// unpickle reads one value.
func unpickle(r io.Reader) (*tree, value, error) {
	u := &unpickler{tree: newTree(), r: bufio.NewReaderSize(r, 256<<10)}
	v, err := u.run()
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errEnd
	}
	return u.tree, v, err
}

func (u *unpickler) run() (value, error) {
	for {
		op, err := u.r.ReadByte()
		if err != nil {
			return value{}, err
		}
		if op == opStop {
			return u.pop()
		}
		if err := u.step(op); err != nil {
			return value{}, err
		}
		if len(u.stack) > maxDepth {
			return value{}, errors.New("it nests too deep")
		}
	}
}

// step runs one opcode.
func (u *unpickler) step(op byte) error {
	switch op {
	case opProto:
		n, err := u.number(1)
		if err == nil && n > maxProtocol {
			err = fmt.Errorf("it has protocol %d, and %d is the latest", n, maxProtocol)
		}
		return err
	case opFrame:
		_, err := u.number(8)
		return err
	case opMark:
		u.marks = append(u.marks, len(u.stack))
		if len(u.marks) > maxDepth {
			return errors.New("it nests too deep")
		}
		return nil
	case opPop:
		_, err := u.pop()
		return err
	case opNone:
		u.push(value{})
	case opTrue, opFalse:
		u.push(value{uint64(op ^ opFalse), boolean})
	case opInt1, opInt2, opInt4, opInt, opLong, opLong1, opLong4, opFloat:
		return u.numeral(op)
	case opShortText:
		return u.string(1)
	case opText:
		return u.string(4)
	case opLongText:
		return u.string(8)
	case opGlobal, opStackGlob:
		return u.global(op)
	case opMemoize, opPut, opLongPut, opGet, opLongGet:
		return u.remember(op)
	default:
		if name, ok := refused[op]; ok {
			return fmt.Errorf("it asks for an object or a call (%s), which no memory snapshot needs", name)
		}
		return u.container(op)
	}
	return nil
}

// container runs an opcode of a list, a tuple or a dictionary.
func (u *unpickler) container(op byte) error {
	switch op {
	case opEmptyList, opEmptyTup:
		u.push(u.list(nil))
		return nil
	case opEmptyDict:
		u.push(u.dict())
		return nil
	case opAppend:
		return u.fill(1, u.appendTo)
	case opSetItem:
		return u.fill(2, u.setIn)
	case opTuple1, opTuple2, opTuple3:
		return u.collect(int(op-opTuple1)+1, false)
	}
	n, err := u.marked()
	if err != nil {
		return err
	}
	switch op {
	case opAppends:
		return u.fill(n, u.appendTo)
	case opSetItems:
		return u.fill(n, u.setIn)
	case opList, opTuple:
		return u.collect(n, false)
	case opDict:
		return u.collect(n, true)
	}
	return fmt.Errorf("it has the opcode %#x", op)
}

func (u *unpickler) push(v value) { u.stack = append(u.stack, v) }

var errEmpty = errors.New("its stack is empty")

func (u *unpickler) pop() (value, error) {
	top, err := u.top(1)
	if err != nil {
		return value{}, err
	}
	v := top[0]
	u.stack = u.stack[:len(u.stack)-1]
	return v, nil
}

// top returns the last values, which no mark may be among.
func (u *unpickler) top(n int) ([]value, error) {
	from := len(u.stack) - n
	if from < 0 || len(u.marks) > 0 && u.marks[len(u.marks)-1] > from {
		return nil, errEmpty
	}
	return u.stack[from:], nil
}

// marked ends the last mark and returns how many values came after it.
func (u *unpickler) marked() (int, error) {
	if len(u.marks) == 0 {
		return 0, errors.New("a mark is missing")
	}
	at := u.marks[len(u.marks)-1]
	u.marks = u.marks[:len(u.marks)-1]
	return len(u.stack) - at, nil
}

// fill adds the last n values to the container before them.
func (u *unpickler) fill(n int, add func(to value, all []value) error) error {
	all, err := u.top(n + 1)
	if err != nil {
		return err
	}
	if err := add(all[0], all[1:]); err != nil {
		return err
	}
	u.stack = u.stack[:len(u.stack)-n]
	return nil
}

func (u *unpickler) appendTo(to value, all []value) error {
	if to.kind != list {
		return fmt.Errorf("it appends to %s", kindNames[to.kind])
	}
	u.lists[to.n] = append(u.lists[to.n], all...)
	return nil
}

func (u *unpickler) setIn(to value, all []value) error {
	if to.kind != dict || len(all)%2 != 0 {
		return fmt.Errorf("it sets %d keys and values of %s", len(all), kindNames[to.kind])
	}
	for i := 0; i < len(all); i += 2 {
		if err := u.set(to, all[i], all[i+1]); err != nil {
			return err
		}
	}
	return nil
}

// collect makes a list, or a dictionary, of the last n values.
func (u *unpickler) collect(n int, pairs bool) error {
	all, err := u.top(n)
	if err != nil {
		return err
	}
	all = append([]value(nil), all...)
	u.stack = u.stack[:len(u.stack)-n]
	if !pairs {
		u.push(u.list(all))
		return nil
	}
	d := u.dict()
	u.push(d)
	return u.setIn(d, all)
}

// bytes returns the next n bytes, which are valid until the next call.
func (u *unpickler) bytes(n uint64) ([]byte, error) {
	if n > maxText {
		return nil, fmt.Errorf("it has a text or number of %d bytes", n)
	}
	if uint64(cap(u.buf)) < n {
		u.buf = make([]byte, n)
	}
	_, err := io.ReadFull(u.r, u.buf[:n])
	return u.buf[:n], err
}

// number returns the next n bytes as a number without a sign, the lowest first.
func (u *unpickler) number(n uint64) (uint64, error) {
	b, err := u.bytes(n)
	var all [8]byte
	copy(all[:], b)
	return binary.LittleEndian.Uint64(all[:]), err
}

func (u *unpickler) string(length uint64) error {
	n, err := u.number(length)
	if err != nil {
		return err
	}
	b, err := u.bytes(n)
	u.push(u.text(b))
	return err
}

// numeral pushes a number. A whole one that has more than 64 bits is none of a snapshot's.
func (u *unpickler) numeral(op byte) error {
	var n uint64
	var err error
	switch op {
	case opInt1:
		n, err = u.number(1)
	case opInt2:
		n, err = u.number(2)
	case opInt4:
		n, err = u.number(4)
		n = uint64(int64(int32(n)))
	case opFloat:
		b, err := u.bytes(8)
		if err == nil {
			u.push(value{binary.BigEndian.Uint64(b), real})
		}
		return err
	case opInt, opLong:
		return u.decimal()
	case opLong1, opLong4:
		size := uint64(1)
		if op == opLong4 {
			size = 4
		}
		if size, err = u.number(size); err != nil {
			return err
		}
		var b []byte
		if b, err = u.bytes(size); err == nil {
			n, err = long(b)
		}
	}
	u.push(value{n, integer})
	return err
}

// long returns a whole number in two's complement, the lowest byte first. One of 64 bits is negative, as in C++
// before it was written without its sign: PyTorch has the line 2^64 - 1 where it knows no line.
func long(b []byte) (uint64, error) {
	var all [8]byte
	if len(b) > 0 && b[len(b)-1] >= 0x80 {
		binary.LittleEndian.PutUint64(all[:], math.MaxUint64)
	}
	for i, x := range b {
		if i < len(all) {
			all[i] = x
		} else if x != 0 && (x != 0xff || int8(all[7]) >= 0) {
			return 0, errors.New("it has a number of more than 64 bits")
		}
	}
	return binary.LittleEndian.Uint64(all[:]), nil
}

// decimal pushes the number of a line.
func (u *unpickler) decimal() error {
	line, err := u.line()
	if err != nil {
		return err
	}
	if line == "00" || line == "01" {
		u.push(value{uint64(line[1] - '0'), boolean})
		return nil
	}
	if len(line) > 0 && line[len(line)-1] == 'L' {
		line = line[:len(line)-1]
	}
	n, err := strconv.ParseInt(line, 10, 64)
	u.push(value{uint64(n), integer})
	return err
}

func (u *unpickler) line() (string, error) {
	b, err := u.r.ReadSlice('\n')
	if err != nil {
		return "", err
	}
	return string(b[:len(b)-1]), nil
}

// global refuses a class or function, by its name.
func (u *unpickler) global(op byte) error {
	var module, name string
	if op == opGlobal {
		module, _ = u.line()
		name, _ = u.line()
	} else if top, err := u.top(2); err == nil {
		module, name = u.tree.string(top[0]), u.tree.string(top[1])
	}
	return fmt.Errorf("it asks for %.100q, which no memory snapshot needs", module+"."+name)
}

// remember stores the last value under a number, or pushes the one that has a number.
func (u *unpickler) remember(op byte) error {
	var n uint64
	var err error
	switch op {
	case opMemoize:
		n = uint64(len(u.memo))
	case opPut, opGet:
		n, err = u.number(1)
	default:
		n, err = u.number(4)
	}
	if err != nil {
		return err
	}
	if op == opGet || op == opLongGet {
		if n >= uint64(len(u.memo)) {
			return fmt.Errorf("it refers to value %d, which it does not have", n)
		}
		u.push(u.memo[n])
		return nil
	}
	top, err := u.top(1)
	if err != nil {
		return err
	}
	switch {
	case n < uint64(len(u.memo)):
		u.memo[n] = top[0]
	case n == uint64(len(u.memo)) && n < mostMemo: // Python counts without a gap
		u.memo = append(u.memo, top[0])
	default:
		return fmt.Errorf("it gives a value the number %d after %d", n, len(u.memo))
	}
	return nil
}
