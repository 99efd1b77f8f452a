package timeline

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"io"
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

func (n *numbers) column(count uint64, sum bool) []uint64 {
	out, all := make([]uint64, count), uint64(0)
	for i := range out {
		out[i] = n.unsigned()
		if sum {
			all += out[i]
			out[i] = all
		}
	}
	return out
}

func block(t *testing.T, html []byte, id string) []byte {
	t.Helper()
	m := regexp.MustCompile(`<script type="application/gzip" id="` + id + `">([A-Za-z0-9+/=]*)</script>`).FindSubmatch(html)
	if m == nil {
		t.Fatalf("no block %s", id)
	}
	z, err := gzip.NewReader(base64.NewDecoder(base64.StdEncoding, bytes.NewReader(m[1])))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func readPage(t *testing.T, html []byte) *page {
	t.Helper()
	p := &page{}
	if err := json.Unmarshal(block(t, html, "meta"), &p.meta); err != nil {
		t.Fatal(err)
	}
	n := &numbers{t, block(t, html, "changes")}
	count, deltas := n.unsigned(), n.unsigned()
	times, counts, rows := n.column(count, true), n.column(count, false), n.column(deltas, false)
	at := 0
	for i := range times {
		x := pageInstant{time: times[i]}
		for range counts[i] {
			x.by = append(x.by, pageDelta{int(rows[at]), n.signed()})
			at++
		}
		p.instants = append(p.instants, x)
	}
	if at != int(deltas) || len(n.b) != 0 {
		t.Fatalf("%d of %d deltas, and %d bytes more", at, deltas, len(n.b))
	}
	n = &numbers{t, block(t, html, "lives")}
	count, moments := n.unsigned(), n.unsigned()
	p.until = n.unsigned()
	p.moments = n.column(moments, true)
	rows = n.column(count, false)
	from := make([]uint64, count)
	for i, all := 0, int64(0); i < int(count); i++ {
		all += n.signed()
		from[i] = uint64(all)
	}
	size, begin, lasted := n.column(count, false), n.column(count, true), n.column(count, false)
	for i := range rows {
		l := pageLife{row: int(rows[i] >> 1), tensor: rows[i]&1 == 1, from: from[i], size: size[i], begin: begin[i], end: never}
		if lasted[i] > 0 {
			l.end = l.begin + lasted[i] - 1
		}
		p.lives = append(p.lives, l)
	}
	if len(n.b) != 0 {
		t.Fatalf("%d bytes more of lives", len(n.b))
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
