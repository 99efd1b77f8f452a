package tensors

import (
	"slices"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
)

// BenchmarkSegments has 100,000 tensors in segments of 20 MiB.
func BenchmarkSegments(b *testing.B) {
	const tensors, size = 100_000, 64 << 10
	l, proc, site := New(ledger.Options{}), event.Process{PID: 7, Start: 1}, &ledger.Site{}
	l.process(proc)
	for i := range uint64(tensors) {
		addr := 1<<40 + i*2*size
		if addr%largeSegment < 2*size || i == 0 {
			from := addr / largeSegment * largeSegment
			l.began(proc, from, from+largeSegment, site)
		}
		l.Apply(&event.Event{Op: event.OpTensorAlloc, Kind: event.KindTensor, Time: i + 1, Proc: proc, Addr: addr, Size: size, Handle: event.NoTotal, Part: event.NoTotal})
	}
	for b.Loop() {
		if s := l.Segments(proc); len(s) != 1 || s[0].Blocks < tensors || s[0].Allocated != tensors*size {
			b.Fatalf("%+v", s)
		}
	}
}

// TestSegmentsOfAnEnded: they stay as they were, however often its end is told.
func TestSegmentsOfAnEnded(t *testing.T) {
	l := New(ledger.Options{})
	l.process(proc)
	l.began(proc, largeSegment, 2*largeSegment, &ledger.Site{})
	l.Apply(reported(event.OpTensorAlloc, 1, largeSegment, 1<<20))
	before := l.Segments(proc)
	for at := range uint64(2) {
		l.Apply(&event.Event{Op: event.OpExit, Time: 10 + at, Proc: proc})
		if got := l.Segments(proc); len(before) != 1 || !slices.Equal(got, before) {
			t.Errorf("told %d times: %+v, want %+v", at+1, got, before)
		}
	}
}
