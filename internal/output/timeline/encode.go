package timeline

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"math"
)

// A column is numbers as the page reads them: how many there are, what they are, and those,
// as unsigned varints, or signed ones folded (0, -1, 1, -2, ...).
type column struct {
	b           []byte
	n           int
	sign        bool // there are negative ones
	sum         bool // each is what its number is more than the one before
	last        int64
	least, most int64 // numbers
}

func (c *column) unsigned(v uint64) {
	c.b = binary.AppendUvarint(c.b, v)
	c.count(int64(min(v, math.MaxInt64)))
}

func (c *column) signed(v int64) {
	c.b = binary.AppendVarint(c.b, v)
	c.count(v)
}

func (c *column) count(v int64) {
	if c.sum {
		v += c.last
	}
	c.last, c.least, c.most = v, min(c.least, v), max(c.most, v)
	c.n++
}

// head returns what comes before the numbers: how many there are, and the smallest type of
// array that holds them all (as unpack.js lists them), sum (2), and sign (1).
func (c *column) head() []byte {
	kind := uint64(4) // Float64Array
	switch {
	case c.least >= 0 && c.most <= math.MaxUint8:
		kind = 0
	case c.least >= 0 && c.most <= math.MaxUint16:
		kind = 1
	case c.least >= 0 && c.most <= math.MaxUint32:
		kind = 2
	case c.least >= math.MinInt32 && c.most <= math.MaxInt32:
		kind = 3
	}
	kind <<= 2
	if c.sum {
		kind |= 2
	}
	if c.sign {
		kind |= 1
	}
	return binary.AppendUvarint(binary.AppendUvarint(nil, uint64(c.n)), kind)
}

// A block is data of the page, compressed.
type block struct {
	name    string
	content []byte
}

// lifeBlock returns where memory lay: until when there are only some moments; those, each
// since the one before; and for each life its row and whether it is a tensor (the lowest
// bit), its address less that of the one before, its size, when it began since the one
// before, and for how long it was there and 1, or 0 if it did not end.
func (d *document) lifeBlock() block {
	var until, rows, size, lasted column
	moments, from, begin := column{sum: true}, column{sum: true, sign: true}, column{sum: true}
	until.unsigned(d.since(d.until))
	at := uint64(0)
	for _, t := range d.moments {
		moments.unsigned(d.since(t) - at)
		at = d.since(t)
	}
	at, address := uint64(0), uint64(0)
	for _, x := range d.lives {
		row := uint64(x.leaf) << 1
		if x.tensor {
			row++
		}
		rows.unsigned(row)
		from.signed(int64(x.from - address))
		size.unsigned(x.to - x.from)
		begin.unsigned(d.since(x.begin) - at)
		if x.end == never {
			lasted.unsigned(0)
		} else {
			lasted.unsigned(x.end - x.begin + 1)
		}
		at, address = d.since(x.begin), x.from
	}
	return packed("lives", &until, &moments, &rows, &from, &size, &begin, &lasted)
}

// packed returns a block of columns.
func packed(name string, columns ...*column) block {
	var out bytes.Buffer
	z := gzip.NewWriter(&out) // no write to a bytes.Buffer fails
	for _, c := range columns {
		_, _ = z.Write(c.head())
		_, _ = z.Write(c.b)
	}
	_ = z.Close()
	return block{name, out.Bytes()}
}

// packed returns a block of one column: the bytes of meta as JSON.
func (m *meta) packed() block {
	text, err := json.Marshal(m)
	if err != nil {
		panic(err) // it has only types that JSON has
	}
	var c column
	for _, b := range text {
		c.unsigned(uint64(b))
	}
	return packed("meta", &c)
}
