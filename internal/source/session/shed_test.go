package session_test

import (
	"slices"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/source/session"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// Where stacks are shed all that is in use is what the driver has, what is shown says so,
// and what lacks a stack for it is counted; with room again stacks are as before.
func TestShed(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "init")
	s := trace(t, session.Options{PIDs: []int{p.PID()}})
	const why = "The agent is at a limit."
	with := func(snap *snapshot.Snapshot) (bytes int64) {
		for _, x := range snap.Samples {
			if len(x.Stack) > 1 { // more than the function alone
				bytes += x.InuseBytes
			}
		}
		return bytes
	}
	for _, step := range []struct {
		shed    probes.Shed
		stacked int64 // bytes with a stack, after 23 more of 4096
		counted uint64
	}{{probes.ShedNothing, 23 * 4096, 0}, {probes.ShedAll, 23 * 4096, 23}, {probes.ShedNothing, 2 * 23 * 4096, 23}} {
		text := why
		if step.shed == probes.ShedNothing {
			text = ""
		}
		if err := s.Shed(probes.Consumer{PID: p.PID()}, step.shed, text); err != nil {
			t.Fatal(err)
		}
		run(t, p, "repeat 23 cuMemAlloc_v2 4096")
		snap := wantLive(t, s, p)
		if got := with(snap); got != step.stacked {
			t.Errorf("shed %d: %d bytes have stacks, want %d", step.shed, got, step.stacked)
		}
		if got := counterOf(t, snap, "stacks_shed"); got != step.counted {
			t.Errorf("shed %d: stacks_shed = %d, want %d", step.shed, got, step.counted)
		}
		if said := slices.Contains(snap.Notes, why); said != (step.shed != probes.ShedNothing) {
			t.Errorf("shed %d: notes %q", step.shed, snap.Notes)
		}
	}
}
