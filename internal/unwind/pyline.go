package unwind

import "errors"

// Which line an instruction belongs to, by CPython's version. The unwinder's own
// answers are wrong from 3.10 on: there it takes instructions for bytes, and from
// 3.11 on every line after an instruction without one is too low by its distance to
// the function.

var errLineTable = errors.New("no line table")

// A lineTable is the part of a PyCodeObject that says which line an
// instruction belongs to.
type lineTable struct {
	first int
	table []byte
}

// line38 returns the line of the instruction at byte i (Objects/lnotab_notes.txt,
// before 3.10): pairs of the steps to the next address and to its line, signed.
func (t lineTable) line38(i int) (int, error) {
	line, at := t.first, 0
	for b := t.table; len(b) >= 2; b = b[2:] {
		if at += int(b[0]); at > i {
			break
		}
		line += int(int8(b[1]))
	}
	return line, nil
}

// line311 returns the line of the code unit at i (Objects/locations.md, 3.11).
func (t lineTable) line311(i int) (int, error) {
	line, end := t.first, 0
	for b := t.table; len(b) > 0; {
		head := b[0]
		if head&0x80 == 0 {
			return 0, errLineTable
		}
		b = b[1:]
		end += int(head&7) + 1
		kind := head >> 3 & 15
		switch {
		case kind == 13, kind == 14: // no columns; long
			delta, n := signedVarint(b)
			if n == 0 {
				return 0, errLineTable
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
				return 0, errLineTable
			}
			return line, nil
		}
	}
	return 0, errLineTable
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

// line310 returns the line of the instruction at i (Objects/lnotab_notes.txt,
// 3.10): pairs of the bytes covered and the signed step to their line.
func (t lineTable) line310(i int) (int, error) {
	line, end := t.first, 0
	for b := t.table; len(b) >= 2; b = b[2:] {
		end += int(b[0])
		step := int(int8(b[1]))
		none := step == -128
		if !none {
			line += step
		}
		if 2*i < end {
			if none {
				return 0, errLineTable
			}
			return line, nil
		}
	}
	return 0, errLineTable
}
