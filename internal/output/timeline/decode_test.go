package timeline

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"io"
	"math"
	"regexp"
	"slices"
	"testing"
)

// A page is what is read of one: what follows shares nothing with what writes it but the
// names of its fields.
type page struct {
	meta     meta
	instants []pageInstant
	lives    []pageLife
	until    uint64
	moments  []uint64
	packed   map[string]int // bytes of blocks
}

type pageInstant struct {
	time uint64
	by   []pageDelta
}

type pageDelta struct {
	row   int
	bytes int64
}

type pageLife struct {
	row        int
	tensor     bool
	from, size uint64
	begin, end uint64
}

type numbers struct {
	t *testing.T
	b []byte
}

func (n *numbers) unsigned() uint64 {
	v, size := binary.Uvarint(n.b)
	if size <= 0 {
		n.t.Fatal("a number is cut")
	}
	n.b = n.b[size:]
	return v
}

func (n *numbers) signed() int64 {
	v, size := binary.Varint(n.b)
	if size <= 0 {
		n.t.Fatal("a number is cut")
	}
	n.b = n.b[size:]
	return v
}

// head returns how many numbers come, once it is sure that those are what is expected.
func (n *numbers) head(sum, sign bool) (count uint64, kind int) {
	count = n.unsigned()
	how := n.unsigned()
	if how&2 > 0 != sum || how&1 > 0 != sign {
		n.t.Fatalf("a column is %b", how)
	}
	return count, int(how >> 2)
}

func (n *numbers) column(sum bool) []uint64 {
	count, kind := n.head(sum, false)
	out, all, most := make([]uint64, count), uint64(0), uint64(0)
	for i := range out {
		out[i] = n.unsigned()
		if sum {
			all += out[i]
			out[i] = all
		}
		most = max(most, out[i])
	}
	if kind < 3 && most>>(8<<kind) > 0 || kind == 3 && most > math.MaxInt32 {
		n.t.Fatalf("%d is in a column of type %d", most, kind)
	}
	return out
}

func (n *numbers) folded(sum bool) []int64 {
	count, kind := n.head(sum, true)
	out, all := make([]int64, count), int64(0)
	for i := range out {
		out[i] = n.signed()
		if sum {
			all += out[i]
			out[i] = all
		}
		if kind < 3 && (out[i] < 0 || out[i]>>(8<<kind) > 0) || kind == 3 && int64(int32(out[i])) != out[i] {
			n.t.Fatalf("%d is in a column of type %d", out[i], kind)
		}
	}
	return out
}

// unpack returns the content of a block.
func (p *page) unpack(t *testing.T, html []byte, name string) []byte {
	t.Helper()
	var packed []byte
	for _, m := range regexp.MustCompile(`<script type="application/gzip" class="piece" data-block="`+name+`">([A-Za-z0-9+/=]*)</script>`).FindAllSubmatch(html, -1) {
		var err error
		if packed, err = base64.StdEncoding.AppendDecode(packed, m[1]); err != nil {
			t.Fatal(err)
		}
	}
	p.packed[name] = len(packed)
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatalf("block %s: %v", name, err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatalf("block %s: %v", name, err)
	}
	return b
}

func readPage(t *testing.T, html []byte) *page {
	t.Helper()
	p := &page{packed: map[string]int{}}
	var text []byte
	for _, b := range (&numbers{t, p.unpack(t, html, "meta")}).column(false) {
		text = append(text, byte(b))
	}
	if err := json.Unmarshal(text, &p.meta); err != nil {
		t.Fatal(err)
	}
	times, rows, bytes, lives := &numbers{t, p.unpack(t, html, "times")}, &numbers{t, p.unpack(t, html, "rows")}, &numbers{t, p.unpack(t, html, "bytes")}, &numbers{t, p.unpack(t, html, "lives")}
	at, ends, of, by := times.column(true), times.column(true), rows.column(false), bytes.folded(false)
	if len(of) != len(by) {
		t.Fatalf("%d rows and %d bytes", len(of), len(by))
	}
	d := 0
	for i, end := range ends {
		x := pageInstant{time: at[i]}
		for ; d < int(end); d++ {
			x.by = append(x.by, pageDelta{int(of[d]), by[d]})
		}
		p.instants = append(p.instants, x)
	}
	p.until = lives.column(false)[0]
	p.moments = lives.column(true)
	leaf, from, size, begin, lasted := lives.column(false), lives.folded(true), lives.column(false), lives.column(true), lives.column(false)
	for i := range leaf {
		l := pageLife{row: int(leaf[i] >> 1), tensor: leaf[i]&1 == 1, from: uint64(from[i]), size: size[i], begin: begin[i], end: never}
		if lasted[i] > 0 {
			l.end = l.begin + lasted[i] - 1
		}
		p.lives = append(p.lives, l)
	}
	if len(p.instants) != len(at) || d != len(of) || len(times.b)+len(rows.b)+len(bytes.b)+len(lives.b) != 0 {
		t.Fatalf("%d of %d instants, and %d deltas more", len(p.instants), len(at), len(of)-d)
	}
	return p
}

// at returns what each row holds at a time: before the changes of that time, and after
// each of them.
func (p *page) at(time uint64) (all [][]int64) {
	held := make([]int64, len(p.meta.Rows.Place))
	for _, x := range p.instants {
		if x.time > time {
			break
		}
		if x.time == time {
			all = append(all, slices.Clone(held))
		}
		for _, d := range x.by {
			held[d.row] += d.bytes
		}
	}
	return append(all, held)
}

func (p *page) text(i int) string { return p.meta.Strings[i] }
