package unwind

// Line tables of CPython. A line is 0 for instructions that have none.

// beyond returns the line of an instruction that the table does not cover: none is known
// if the table was cut, else it is another code object's.
func (c *code) beyond() (int, error) {
	if c.cut {
		return 0, nil
	}
	return 0, errCodeReplaced
}

// line36 returns the line of the byte at i (Objects/lnotab_notes.txt, 3.6 to 3.9):
// pairs of the bytes that come before, and the signed step to the next line.
func (c *code) line36(i int) (int, error) {
	line, start := c.first, 0
	for b := c.table; len(b) >= 2; b = b[2:] {
		if start += int(b[0]); start > i {
			return line, nil
		}
		line += int(int8(b[1]))
	}
	if c.cut {
		return c.beyond()
	}
	return line, nil
}

// line310 returns the line of the instruction at i (Objects/lnotab_notes.txt,
// 3.10): pairs of the bytes covered and the signed step to their line.
func (c *code) line310(i int) (int, error) {
	line, end := c.first, 0
	for b := c.table; len(b) >= 2; b = b[2:] {
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
	return c.beyond()
}

// line311 returns the line of the code unit at i (Objects/locations.md, 3.11).
func (c *code) line311(i int) (int, error) {
	line, end := c.first, 0
	for b := c.table; len(b) > 0; {
		head := b[0]
		if head&0x80 == 0 {
			return 0, errCodeReplaced
		}
		b = b[1:]
		end += int(head&7) + 1
		kind := head >> 3 & 15
		switch {
		case kind == 13, kind == 14: // no columns; long
			delta, n := signedVarint(b)
			if n == 0 {
				return c.beyond()
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
	return c.beyond()
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
