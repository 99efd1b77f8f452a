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

// TestTensorWindows: windows of a training have its steps, each with what it allocates, and what its
// lines hold at the peak of one, now and in a recording. What is in use is what CUDA handed out, in
// windows and between them.
func TestTensorWindows(t *testing.T) {
	p := startPyTorch(t, "testdata/windows.py")
	p.hear()
	run := filepath.Join(t.TempDir(), "run.gmt")
	s := trace(t, session.Options{PIDs: []int{p.cmd.Process.Pid}, Tensors: true, Stacks: unwind.Always, Recording: run,
		Windows: session.WindowOptions{Length: 200 * time.Millisecond, Every: 600 * time.Millisecond}})
	all := state.Want{Windows: true, Steps: true, Live: true}
	eventually(t, func() string {
		snap := s.View(all).Snapshot()
		if w := snap.Meta.Windows; w == nil || w.Length != 200*time.Millisecond {
			return fmt.Sprintf("%+v", w)
		}
		if len(snap.Samples) != 0 {
			return "memory from before the trace is shown"
		}
		if len(snap.Windowed) != 1 || snap.Windowed[0].Windows < 3 || snap.Windowed[0].Steps < 10 {
			return fmt.Sprintf("%+v", snap.Windowed)
		}
		return ""
	})
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	snap := s.View(all).Snapshot()
	wantWindows(t, snap)
	for _, c := range snap.Loss {
		if c.Value != 0 {
			t.Logf("%s = %d", c.Name, c.Value)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	recorded, err := replay.Play(run, replay.Options{At: replay.End})
	if err != nil {
		t.Fatal(err)
	}
	played := recorded.View(all).Snapshot()
	wantWindows(t, played)
	if d := cmp.Diff(snap.Windowed[0].Steps, played.Windowed[0].Steps); d != "" {
		t.Errorf("in the recording (-want +got):\n%s", d)
	}
}

// wantWindows checks what a snapshot has of the tensors of windows.py.
func wantWindows(t *testing.T, s *snapshot.Snapshot) {
	t.Helper()
	x := &s.Windowed[0]
	if !x.WholeStep || x.Peak != 112<<20 || x.Before != 100<<20 || x.Reserved != 1<<30 || x.Time < 2*200*time.Millisecond {
		t.Errorf("the peak of a step: %d, of it from before %d, of %d reserved, in %v", x.Peak, x.Before, x.Reserved, x.Time)
	}
	type row struct{ Peak, StepBytes, StepObjects int64 }
	got := map[string]row{}
	for i := range x.Rows {
		r := &x.Rows[i]
		for _, l := range r.Sample.Stack {
			switch name := l.Lines[0].Function; name {
			case "forward", "loss", "SGD.step", "step":
				got[name] = row{r.Sample.PeakBytes, r.StepBytes / x.Steps, r.StepObjects / x.Steps}
			}
		}
		if r.Freed == 0 || r.Life == 0 || r.Outlived > x.Windows*8 || r.Freed+r.Outlived != r.Sample.AllocObjects {
			t.Errorf("%+v", r)
		}
	}
	if x, ok := got["step"]; ok { // of a Python without qualified names
		delete(got, "step")
		got["SGD.step"] = x
	}
	if d := cmp.Diff(map[string]row{"forward": {8 << 20, 8 << 20, 8}, "loss": {4 << 20, 4 << 20, 1}, "SGD.step": {0, 3 << 20, 1}}, got); d != "" {
		t.Errorf("by line (-want +got):\n%s", d)
	}
	if len(s.Steps) != 1 || s.Steps[0].Seen != x.Steps {
		t.Fatalf("steps %+v, want %d", s.Steps, x.Steps)
	}
	want := snapshot.Moved{AllocBytes: 15 << 20, AllocObjects: 10, FreedBytes: 15 << 20, FreedObjects: 10, PeakBytes: 112 << 20, InuseBytes: 100 << 20}
	for _, one := range s.Steps[0].Last {
		if one.Moved != want {
			t.Errorf("step %d: %+v", one.Number, one.Moved)
		}
	}
}
