package tensors

import (
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

func reported(op event.Op, at, addr, size uint64) *event.Event {
	e := &event.Event{Op: op, Time: at, Proc: proc, Addr: addr, Size: size, Handle: event.NoTotal, Part: event.NoTotal}
	if op == event.OpTensorAlloc {
		e.Kind = event.KindTensor
	}
	return e
}

// TestOneEventIsCheap: a process that says a lot does not make its next event keep the
// tracer, and with it all others, waiting. If each event looked at all there is, these would take hours.
func TestOneEventIsCheap(t *testing.T) {
	const many = 100_000
	sites := make([]ledger.Site, many+1)
	tests := []struct {
		name  string
		set   func(l *Ledger, n int)
		event func(l *Ledger, i int)
	}{
		{"a segment ends with a tensor in it, beside many tensors", func(l *Ledger, n int) {
			for i := range uint64(n) {
				l.Apply(reported(event.OpTensorAlloc, 1, 1<<40+i<<10, 512))
			}
		}, func(l *Ledger, i int) {
			l.began(proc, 1<<20, 1<<21, &sites[0])
			l.Apply(reported(event.OpTensorAlloc, uint64(i+2), 1<<20, 512))
			l.ended(proc, 1<<20, 1<<21)
		}},
		{"a call site gets and frees a segment, beside those of many", func(l *Ledger, n int) {
			for i := range uint64(n) {
				l.began(proc, 1<<40+i<<10, 1<<40+(i+1)<<10, &sites[i])
			}
		}, func(l *Ledger, _ int) {
			l.began(proc, 1<<20, 1<<21, &sites[many])
			l.ended(proc, 1<<20, 1<<21)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			hangs := time.AfterFunc(10*time.Minute, func() { panic("an event takes as long as there is much beside it") })
			defer hangs.Stop()
			l := New(ledger.Options{})
			l.process(proc)
			tt.set(l, many)
			for i := range 1_000_000 {
				tt.event(l, i)
				for range l.TakePieces {
					continue
				}
			}
		})
	}
}

// TestPartsAreBounded: a tensor over more pieces of memory than there can be is not
// counted, and that is told.
func TestPartsAreBounded(t *testing.T) {
	l, at := New(ledger.Options{}), &ledger.Site{}
	l.process(proc)
	for i := range uint64(maxParts + 2) {
		l.began(proc, 1<<40+i<<10, 1<<40+(i+1)<<10, at)
	}
	for pieces, counts := range map[uint64]bool{maxParts + 1: true, maxParts + 2: false} {
		want := uint64(0)
		if !counts {
			want = 1
		}
		l.Apply(reported(event.OpTensorAlloc, 2*pieces, 1<<40, pieces<<10))
		if bytes, lost := l.Bytes(proc) != 0, l.loss.Counters()[lossParts].Value; bytes != counts || lost != want {
			t.Errorf("%d pieces: %d bytes, %d are told", pieces, l.Bytes(proc), lost)
		}
		l.Apply(reported(event.OpTensorFree, 2*pieces+1, 1<<40, pieces<<10))
		l.loss = loss.New(causes)
	}
}
