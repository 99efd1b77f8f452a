package record

import (
	"encoding/binary"
	"math/bits"
)

// Varints are those of encoding/binary, but without a loop over their bytes: addresses and ids
// have many of them, and no branch tells how many. The lowest 8 bytes are done at once.

// more has, for each of 8 bytes of a varint, the bit that says that another one follows.
const more = 0x8080808080808080

func (c *Fields) write(v uint64) { c.number(v) }

// number visits a number: it returns v, or what it read instead.
func (c *Fields) number(v uint64) uint64 { return c.field(0, v) }

// field visits a number as number does, and adds its bit to the mask of an event.
func (c *Fields) field(bit uint32, v uint64) uint64 {
	if c.reading {
		return c.read()
	}
	c.mask |= bit
	if v < 0x80 {
		c.buf = append(c.buf, byte(v))
		return v
	}
	x := v&0x000000000fffffff | v&0x00fffffff0000000<<4
	x = x&0x00003fff00003fff | x&0x0fffc0000fffc000<<2
	x = x&0x007f007f007f007f | x&0x3f803f803f803f80<<1
	if rest := v >> 56; rest != 0 {
		c.buf = binary.LittleEndian.AppendUint64(c.buf, x|more)
		c.buf = binary.AppendUvarint(c.buf, rest)
		return v
	}
	n := (bits.Len64(v) + 6) / 7
	x |= more & (1<<(8*(n-1)&63) - 1)
	c.buf = binary.LittleEndian.AppendUint64(c.buf, x)
	c.buf = c.buf[:len(c.buf)-8+n]
	return v
}

func (c *Fields) read() uint64 {
	b := c.buf[c.at:]
	if len(b) > 0 && b[0] < 0x80 {
		c.at++
		return uint64(b[0])
	}
	if len(b) < 10 {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			c.fail()
			return 0
		}
		c.at += n
		return v
	}
	x := binary.LittleEndian.Uint64(b)
	end := ^x & more
	x &= (end ^ (end - 1)) &^ more
	x = x&0x007f007f007f007f | x&0x7f007f007f007f00>>1
	x = x&0x00003fff00003fff | x&0x3fff00003fff0000>>2
	x = x&0x000000000fffffff | x&0x0fffffff00000000>>4
	if end != 0 {
		c.at += bits.TrailingZeros64(end)/8 + 1
		return x
	}
	rest, n := binary.Uvarint(b[8:10])
	if n <= 0 || rest > 0xff {
		c.fail()
		return 0
	}
	c.at += 8 + n
	return x | rest<<56
}
