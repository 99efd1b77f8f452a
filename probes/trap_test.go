package probes

import (
	"testing"
	"time"
)

// A trap takes the kernel between a tenth of a microsecond and some tens of
// them, and its probe is gone after.
func TestTrapCost(t *testing.T) {
	needTracing(t)
	begin := time.Now()
	cost, err := TrapCost()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%v, measured in %v", cost, time.Since(begin))
	if cost < 50*time.Nanosecond || cost > time.Millisecond {
		t.Errorf("%v a trap", cost)
	}
	begin = time.Now()
	const calls = 100_000
	for range calls {
		trapped()
	}
	if after := time.Since(begin) / calls; after > cost/2 {
		t.Errorf("a call takes %v after, a trap %v: the probe is still there", after, cost)
	}
}
