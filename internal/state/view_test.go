package state

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Totals are those of a View's snapshot, and what its samples add up to.
func TestTotals(t *testing.T) {
	for seed := range uint64(20) {
		s := New()
		traced(seed, 500, s.Apply)
		got, out := s.Totals(), s.View(Want{}).Snapshot()
		if d := cmp.Diff(out.Processes, got); d != "" {
			t.Errorf("seed %d (-snapshot +totals):\n%s", seed, d)
		}
		bytes := map[int]int64{}
		for i := range out.Samples {
			bytes[out.Samples[i].PID] += out.Samples[i].InuseBytes
		}
		held := false
		for _, p := range got {
			held = held || p.Inuse > 0
			if p.Inuse != bytes[p.PID] {
				t.Errorf("seed %d: process %d has %d bytes in use, its samples %d", seed, p.PID, p.Inuse, bytes[p.PID])
			}
		}
		if !held {
			t.Errorf("seed %d: nothing in use", seed)
		}
	}
}
