package tensors

import (
	"math"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

func TestReached(t *testing.T) {
	for x := 1e-12; x < 100; x *= 1.01 {
		if got, want := reached(x), -math.Expm1(-x); math.Abs(got/want-1) > 1e-14 {
			t.Errorf("reached(%g) = %.17g, want %.17g", x, got, want)
		}
	}
	if reached(0) != 0 {
		t.Error("nothing is reached")
	}
	// Bit for bit, on every machine.
	for x, bits := range map[float64]uint64{1.0 / 2048: 0x3f3ffe001554aaaf, 0.3: 0x3fd0966f2c7907f7, 1: 0x3fe43a54e4e98864, 7.5: 0x3feffb781916fc34} {
		if got := math.Float64bits(reached(x)); got != bits {
			t.Errorf("reached(%g) is %#x, want %#x", x, got, bits)
		}
	}
}

// What a sampled tensor counts for, times how probable it is to be sampled, is the
// tensor.
func TestWeigh(t *testing.T) {
	for _, mean := range []uint64{1, 4096, 64 << 10, 1 << 20, 1 << 30} {
		for size := uint64(512); size < 1<<40; size += size/3 + 512 {
			w := weigh(size, mean)
			p := -math.Expm1(-float64(size) / float64(mean))
			if objects := float64(w.Objects) * p / objectUnit; math.Abs(objects-1) > 1e-3 {
				t.Errorf("%d bytes at %d: %f tensors in the mean", size, mean, objects)
			}
			if bytes := float64(w.Bytes) * p; math.Abs(bytes-float64(size)) > 1 {
				t.Errorf("%d bytes at %d: %f bytes in the mean", size, mean, bytes)
			}
			if w.Bytes < int64(size) || w.Bytes < int64(mean) {
				t.Errorf("%d bytes at %d count for %d", size, mean, w.Bytes)
			}
		}
	}
	if w := weigh(0, 512); w.Objects != 0 || w.Bytes != 0 {
		t.Errorf("no bytes count for %+v", w)
	}
}

// A tensor of which is told after its process ran another program counts for as many as
// any other of the sample.
func TestLateTensorIsWeighed(t *testing.T) {
	const mean = 1 << 20
	l := New(ledger.Options{})
	l.ApplyRecord(&record.Tensors{Sample: mean})
	l.Apply(&event.Event{Op: event.OpExec, Time: 20, Proc: proc})
	for _, at := range []uint64{10, 30} {
		l.Apply(makes(1, at, 1<<32, at))
	}
	n := 0
	for s := range l.Rows.Sites {
		n++
		if w := weigh(512, mean); s.AllocObjects != w.Objects || s.AllocBytes != w.Bytes {
			t.Errorf("that of %d counts for %d of %d bytes, want %+v", s.Stack, s.AllocObjects, s.AllocBytes, w)
		}
	}
	if n != 2 {
		t.Errorf("%d call sites", n)
	}
}
