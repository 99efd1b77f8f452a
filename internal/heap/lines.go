package heap

import "errors"

// A LineTable says at which line each instruction of a code object is. A line is 0 for
// instructions that have none.
type LineTable struct {
	Bytes []byte
	First int  // line of the code object
	Cut   bool // the table has more bytes
}

// ErrLines means that an instruction lies outside a complete line table, or that the
// table is malformed: it belongs to other code.
var ErrLines = errors.New("the line table does not have the instruction")

// beyond returns the line of an instruction that the table does not cover: none is known
// if the table was cut, else it is another code object's.
func (t *LineTable) beyond() (int, error) {
	if t.Cut {
		return 0, nil
	}
	return 0, ErrLines
}

// Line36 returns the line of the byte at i (Objects/lnotab_notes.txt, 3.6 to 3.9):
// pairs of the bytes that come before, and the signed step to the next line.
func (t *LineTable) Line36(i int) (int, error) {
	line, start := t.First, 0
	for b := t.Bytes; len(b) >= 2; b = b[2:] {
		if start += int(b[0]); start > i {
			return line, nil
		}
		line += int(int8(b[1]))
	}
	if t.Cut {
		return t.beyond()
	}
	return line, nil
}

// Line310 returns the line of the instruction at i (Objects/lnotab_notes.txt,
// 3.10): pairs of the bytes covered and the signed step to their line.
func (t *LineTable) Line310(i int) (int, error) {
	line, end := t.First, 0
	for b := t.Bytes; len(b) >= 2; b = b[2:] {
		end += int(b[0])
		step := int(int8(b[1]))
		none := step == -128
		if !none {
			line += step
		}
		if 2*i < end {
			if none {
				return 0, nil
			}
			return line, nil
		}
	}
	return t.beyond()
}

// Line311 returns the line of the code unit at i (Objects/locations.md, 3.11).
func (t *LineTable) Line311(i int) (int, error) {
	line, end := t.First, 0
	for b := t.Bytes; len(b) > 0; {
		head := b[0]
		if head&0x80 == 0 {
			return 0, ErrLines
		}
		b = b[1:]
		end += int(head&7) + 1
		kind := head >> 3 & 15
		switch {
		case kind == 13, kind == 14: // no columns; long
			delta, n := signedVarint(b)
			if n == 0 {
				return t.beyond()
			}
			line += delta
		case kind >= 10 && kind <= 12: // this line or one of the next two
			line += int(kind) - 10
		}
		for len(b) > 0 && b[0]&0x80 == 0 { // the rest of the entry
			b = b[1:]
		}
		if i < end {
			if kind == 15 { // none
				return 0, nil
			}
			return line, nil
		}
	}
	return t.beyond()
}

// signedVarint returns a number in six-bit groups, lowest first, its sign in
// the lowest bit, and how many bytes it takes; 0 when it is not whole.
func signedVarint(b []byte) (int, int) {
	var v uint32
	for i, shift := 0, 0; i < len(b) && shift < 32; i, shift = i+1, shift+6 {
		v |= uint32(b[i]&0x3f) << shift
		if b[i]&0x40 == 0 {
			if v&1 != 0 {
				return -int(v >> 1), i + 1
			}
			return int(v >> 1), i + 1
		}
	}
	return 0, 0
}
