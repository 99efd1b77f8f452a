package record

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// Numbers are the varints of encoding/binary.
func TestNumbers(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		v := r.Uint64() >> r.IntN(64)
		want := binary.AppendUvarint(nil, v)
		w := Fields{}
		if w.write(v); !bytes.Equal(w.buf, want) {
			t.Fatalf("%d is % x, want % x", v, w.buf, want)
		}
		// At the end of a payload, amid one, and not whole.
		for _, more := range []int{0, 1, 20, -1} {
			readsAs(t, append(want, make([]byte, 20)...)[:len(want)+more])
		}
		nonsense := make([]byte, r.IntN(14))
		for i := range nonsense {
			nonsense[i] = byte(r.Uint32()) | byte(r.Uint32())&0x80
		}
		readsAs(t, nonsense)
	}
}

func readsAs(t *testing.T, b []byte) {
	t.Helper()
	want, n := binary.Uvarint(b)
	r := Fields{buf: b, reading: true}
	if got := r.read(); r.bad != (n <= 0) || n > 0 && (got != want || r.at != n) {
		t.Fatalf("% x is %d of %d bytes, bad %v, want %d of %d", b, got, r.at, r.bad, want, n)
	}
}
