package state

import (
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// BenchmarkSteps is a training's tensors: one that is made and freed in an op.
func BenchmarkSteps(b *testing.B) {
	s := begun(record.Trace{})
	for _, st := range program() {
		s.Apply(st)
	}
	s.Apply(alloc(prog, 1, 1<<40, 1<<30))
	at := uint64(10)
	b.ReportAllocs()
	for n := uint64(0); b.Loop(); n++ {
		stack := uint64(atForward)
		if n%1000 < 100 {
			stack = atStep
		}
		at += 10
		addr := 1<<40 + n%1000*4096
		s.Apply(tensor(at, addr, 4096, stack, event.NoTotal))
		s.Apply(tensorEnd(at+1, addr, 4096, event.NoTotal))
	}
	if got := s.View(Want{Steps: true}).Snapshot().Steps; len(got) != 1 || b.N > 3000 && got[0].Seen == 0 {
		b.Errorf("%+v", got)
	}
}
