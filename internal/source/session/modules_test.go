package session_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/source/session"
	"github.com/gpumemtrace/gpumemtrace/internal/source/unwind"
)

// TestModulesOfTensors: what the forward of a module made has the path to this module, one for
// each layer, now and in a recording. A module without a path leaves it to the one around it.
func TestModulesOfTensors(t *testing.T) {
	p := startPyTorch(t, "testdata/modules.py")
	p.hear()
	run := filepath.Join(t.TempDir(), "run.gmt")
	s := trace(t, session.Options{PIDs: []int{p.cmd.Process.Pid}, Tensors: true, Stacks: unwind.Always, VerifyStacks: 1, Recording: run,
		Heaps: session.HeapOptions{Every: time.Hour, Fresh: true}})
	want := map[string]int64{"": 512, "model": 1 << 16}
	for n := range int64(4) {
		block := fmt.Sprintf("model.blocks[%d]", n)
		want[block], want[block+".mlp"] = (n+1)<<12, (n+1)<<20
	}
	paths := func(s *snapshot.Snapshot) map[string]int64 {
		sums := map[string]int64{}
		for i := range s.Samples {
			if x := &s.Samples[i]; x.Kind == "tensor" && x.InuseBytes != 0 {
				sums[x.ModulePath] += x.InuseBytes
			}
		}
		return sums
	}
	eventually(t, func() string { // the function that calls modules is found by the first forward
		fmt.Fprintln(p.in)
		p.hear()
		return cmp.Diff(want, paths(s.View(state.Want{Holders: true}).Snapshot()))
	})
	if got := paths(s.Snapshot(false)); len(got) != 1 {
		t.Errorf("without holders: %v", got)
	}
	snap := s.Report(false)
	wantNoLoss(t, snap)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	recorded, err := replay.Play(run, replay.Options{At: replay.End})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, paths(recorded.View(state.Want{Holders: true}).Snapshot())); d != "" {
		t.Errorf("in the recording (-want +got):\n%s", d)
	}
}
