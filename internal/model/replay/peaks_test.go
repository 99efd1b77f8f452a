package replay

import (
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// At no moment does a process hold more than at its peak, on GPUs or of a class beside that.
func TestPeakIsNotBelowUse(t *testing.T) {
	for name, path := range recordings(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			type part struct {
				pid   int
				class string
			}
			n := 0
			states(t, path, 211, func(s *state.State) {
				inuse, peak := map[part]int64{}, map[part]int64{}
				for _, x := range s.View(state.Want{Driver: true}).Snapshot().Samples {
					p := part{x.PID, "on GPUs"}
					if !snapshot.OnGPU(x.Kind) {
						p.class = snapshot.Class(x.Kind)
					}
					inuse[p] += x.InuseBytes
					peak[p] += x.PeakBytes
				}
				for p, bytes := range inuse {
					if n++; peak[p] < bytes {
						t.Errorf("%d %s: %d bytes at the peak, %d in use", p.pid, p.class, peak[p], bytes)
					}
				}
			})
			if n == 0 {
				t.Error("nothing was compared")
			}
		})
	}
}
