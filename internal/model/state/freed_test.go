package state

import (
	"fmt"
	"slices"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// What stacks freed is told by the samples of what they freed, and stacks of frees
// stay as long as that does.
func TestFreed(t *testing.T) {
	s := begun(record.Trace{})
	for id, f := range []string{"load", "forward", "free", "zero", "unused"} {
		stack(s, uint64(id+1), " ", f)
	}
	for i, by := range []uint64{3, 3, 4, 0} {
		at := uint64(100 * (i + 1))
		for _, stack := range []uint64{1, 2} {
			made := tensor(at, stack<<32+uint64(i)<<20, 10*stack, stack, event.NoTotal)
			s.Apply(made)
			end := tensorEnd(at+1, made.Addr, made.Size, event.NoTotal)
			if end.Stack = by; i < 2 || stack == 1 {
				s.Apply(end)
			}
		}
	}
	s.Apply(&record.Sweep{})
	s.Apply(&record.Sweep{Drop: true})
	if n := s.stacks.Len(); n != 4 {
		t.Errorf("%d stacks are kept, want all but the one that nothing refers to", n)
	}
	var got []string
	snap := s.View(Want{Freed: true}).Snapshot()
	for _, f := range snap.Freed {
		of := &snap.Samples[f.Sample]
		got = append(got, fmt.Sprint(of.InuseBytes, " of ", of.AllocBytes, ": ", f.Objects, " ", f.Bytes, " ", len(f.By)))
	}
	slices.Sort(got)
	if want := []string{"0 of 40: 1 10 1", "0 of 40: 2 20 1", "40 of 80: 2 40 1"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if snap := s.View(Want{}).Snapshot(); snap.Freed != nil {
		t.Error("nobody asked")
	}
}
