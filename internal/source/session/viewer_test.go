package session_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/output/memoryviz"
	"github.com/gpumemtrace/gpumemtrace/internal/source/session"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/viewertest"
)

// TestViewer: PyTorch's memory viewer can go through what a running trace shows, and finds
// in it what the allocator says that it has handed out and holds.
func TestViewer(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "tensor; untensor; empty_cache")
	s := trace(t, session.Options{PIDs: []int{p.PID()}, Tensors: true, Layout: true, Remember: 10_000})
	run(t, p, "cuMemAlloc_v2 7m")
	for _, step := range []string{
		"via lr tensor 1000; tensor 3m; tensor 19m; repeat 30 via rl tensor 700",
		"threads 4 { repeat 100 { tensor 5000; untensor 3 } }",
		"repeat 20 untensor; empty_cache; tensor 12m",
	} {
		run(t, p, step)
		var allocated, reserved int64
		if _, err := fmt.Sscan(run(t, p, "tensors")[0], &allocated, &reserved); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() string {
			var b bytes.Buffer
			if err := memoryviz.Pickle(&b, s.Session.Snapshot(state.Want{Layout: true})); err != nil {
				t.Fatal(err)
			}
			seen, err := viewertest.ReadPickle(b.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			if err := seen.Check(true); err != nil {
				return err.Error()
			}
			var handed, held, outside int64
			for i := range seen.Segments {
				if g := &seen.Segments[i]; g.Stream == 0 {
					handed, held = handed+g.Allocated, held+g.Total
				} else {
					outside += g.Total
				}
			}
			if handed == allocated && held == reserved && outside == 7<<20 && len(seen.DeviceTraces) == 1 && len(seen.DeviceTraces[0]) > 30 {
				return ""
			}
			return fmt.Sprintf("after %q: %d of %d, and %d, want %d of %d", step, handed, held, outside, allocated, reserved)
		})
	}
}
