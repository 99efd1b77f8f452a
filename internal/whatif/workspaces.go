package whatif

import (
	"fmt"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/whatif/allocator"
)

// workspaces returns the most that cuDNN's workspaces for convolutions had at one moment, in bytes.
// cuDNN chooses how to do a convolution when the program runs, and what workspace it needs.
func (x *Run) workspaces() (most uint64) {
	var live uint64
	sizes := map[uint32]uint64{}
	for i := range x.Requests {
		switch q := &x.Requests[i]; q.Op {
		case allocator.Make:
			if site := x.site(q.Tensor); int(site) < len(x.Sites) && x.Sites[site].Workspace {
				sizes[q.Tensor] = uint64(q.Units) * unit
				live += sizes[q.Tensor]
				most = max(most, live)
			}
		case allocator.Free:
			live -= sizes[q.Tensor]
			delete(sizes, q.Tensor)
		}
	}
	return most
}

// doubt says what cuDNN's workspaces mean for a prediction, "" if the run had none to speak of.
func doubt(workspaces, peak uint64, when string) string {
	if float64(workspaces) < worthwhile/2*float64(peak) {
		return ""
	}
	return fmt.Sprintf("cuDNN's workspaces for convolutions had up to %s at once. cuDNN may choose others %s: the figures may be wrong by so much.", bytefmt.Format(int64(workspaces)), when)
}
