package timeline

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
)

// A column is numbers as the page reads them: unsigned varints, signed ones folded
// (0, -1, 1, -2, ...).
type column struct{ b []byte }

func (c *column) unsigned(v uint64) { c.b = binary.AppendUvarint(c.b, v) }
func (c *column) signed(v int64)    { c.b = binary.AppendVarint(c.b, v) }

// lifeColumns returns where memory lay: how many lives and moments there are, and until
// when there are only those moments; the moments, each since the one before; and for each
// life its row and whether it is a tensor (the lowest bit), its address less that of the
// one before, its size, when it began since the one before, and for how long it was there
// and 1, or 0 if it did not end.
func (d *document) lifeColumns() [][]byte {
	var head, moments, rows, from, size, begin, lasted column
	head.unsigned(uint64(len(d.lives)))
	head.unsigned(uint64(len(d.moments)))
	head.unsigned(d.since(d.until))
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
	return [][]byte{head.b, moments.b, rows.b, from.b, size.b, begin.b, lasted.b}
}

// packed returns content compressed.
func packed(content ...[]byte) ([]byte, error) {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	for _, b := range content {
		if _, err := z.Write(b); err != nil {
			return nil, err
		}
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func (m *meta) packed() ([]byte, error) {
	text, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	return packed(text)
}
