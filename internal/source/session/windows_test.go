package session_test

import (
	"fmt"
	"io"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/source/session"
	"github.com/gpumemtrace/gpumemtrace/internal/source/unwind"
)

// TestTensorWindows: windows of a training have its steps, each with what it allocates, and what its
// lines hold at the peak of one, now and in a recording. What is in use is what CUDA handed out, in
// windows and between them.
func TestTensorWindows(t *testing.T) {
	p := startTraining(t)
	p.begin()
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
		if len(snap.Windowed) != 1 || snap.Windowed[0].Windows < 3 || snap.Windowed[0].Steps < 10 || snap.Windowed[0].Before > 100<<20 {
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

// startTraining starts windows.py, which has loaded its libraries.
func startTraining(t *testing.T) *pyTorch {
	t.Helper()
	p := startPyTorch(t, "testdata/windows.py")
	p.hear()
	return p
}

// begin lets windows.py make its first tensor, and train.
func (p *pyTorch) begin() {
	p.Helper()
	if _, err := io.WriteString(p.in, "\n"); err != nil {
		p.Fatal(err)
	}
	p.hear()
}

// TestWindowsOfStart: the first window of a program that does not train yet is followed by others soon.
func TestWindowsOfStart(t *testing.T) {
	p := startTraining(t)
	s := trace(t, session.Options{PIDs: []int{p.cmd.Process.Pid}, Tensors: true, Stacks: unwind.Always,
		Windows: session.WindowOptions{Length: 100 * time.Millisecond, Every: time.Hour}})
	want := func(is func(s *snapshot.Snapshot) bool) {
		t.Helper()
		eventually(t, func() string {
			if s := s.View(state.Want{Windows: true}).Snapshot(); !is(s) {
				return fmt.Sprintf("%+v, %+v", s.Meta.Windows, s.Windowed)
			}
			return ""
		})
	}
	want(func(s *snapshot.Snapshot) bool { return s.Meta.Windows.Time > 0 && len(s.Windowed) == 0 })
	p.begin()
	want(func(s *snapshot.Snapshot) bool { return len(s.Windowed) == 1 && s.Windowed[0].Steps > 0 })
}

// TestWindowPeakOfWholeTrace: what each stack holds at the peak of a step, as windows have seen it, is
// what it holds at the peak of a trace of every tensor of the same program.
func TestWindowPeakOfWholeTrace(t *testing.T) {
	p := startTraining(t)
	p.begin()
	run := filepath.Join(t.TempDir(), "run.gmt")
	traced := func(o session.Options, done func(s *snapshot.Snapshot) bool) *snapshot.Snapshot {
		o.PIDs, o.Tensors, o.Stacks = []int{p.cmd.Process.Pid}, true, unwind.Always
		s := trace(t, o)
		all := state.Want{Windows: true, Steps: true}
		eventually(t, func() string {
			if s := s.View(all).Snapshot(); !done(s) {
				return fmt.Sprintf("%+v, %+v", s.Windowed, s.Steps)
			}
			return ""
		})
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		return s.View(all).Snapshot()
	}
	windowed := traced(session.Options{Windows: session.WindowOptions{Length: 200 * time.Millisecond, Every: 600 * time.Millisecond}}, func(s *snapshot.Snapshot) bool {
		return len(s.Windowed) == 1 && s.Windowed[0].Windows >= 2 && s.Windowed[0].Steps >= 10 && s.Windowed[0].Before == 100<<20
	})
	whole := traced(session.Options{Recording: run}, func(s *snapshot.Snapshot) bool { return len(s.Steps) == 1 && s.Steps[0].Seen >= 10 })

	in, err := record.Open(run)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	span, _, err := replay.Measure(in, replay.Options{})
	if err != nil {
		t.Fatal(err)
	}
	peak, err := replay.Play(run, replay.Options{At: span.Peak})
	if err != nil {
		t.Fatal(err)
	}
	// bytes adds up by the functions of a stack.
	bytes := func(each func(add func(x *snapshot.Sample, bytes int64))) (sum int64, by map[string]int64) {
		by = map[string]int64{}
		each(func(x *snapshot.Sample, bytes int64) {
			if x.Kind == event.KindTensor.String() && bytes != 0 {
				sum += bytes
				by[render.Brief(x.Frames(), len(x.Frames()))] += bytes
			}
		})
		return sum, by
	}
	rows := windowed.Windowed[0].Rows
	_, got := bytes(func(add func(*snapshot.Sample, int64)) {
		for i := range rows {
			add(&rows[i].Sample, rows[i].Sample.PeakBytes)
		}
	})
	samples := func(s *snapshot.Snapshot, value func(*snapshot.Sample) int64) (int64, map[string]int64) {
		return bytes(func(add func(*snapshot.Sample, int64)) {
			for i := range s.Samples {
				add(&s.Samples[i], value(&s.Samples[i]))
			}
		})
	}
	for _, c := range []struct {
		of    string
		s     *snapshot.Snapshot
		value func(*snapshot.Sample) int64
	}{
		{"in use at the peak of the recording", peak.View(state.Want{}).Snapshot(), func(x *snapshot.Sample) int64 { return x.InuseBytes }},
		{"at the peak, in the profile", whole, func(x *snapshot.Sample) int64 { return x.PeakBytes }},
	} {
		sum, want := samples(c.s, c.value)
		differ := int64(0)
		for k, n := range want {
			differ += max(n-got[k], got[k]-n)
		}
		for k, n := range got {
			if _, there := want[k]; !there {
				differ += n
			}
		}
		if len(want) < 3 || differ > sum/100 {
			t.Errorf("%s: %d of %d bytes differ (-want +got):\n%s", c.of, differ, sum, cmp.Diff(want, got))
		}
	}
}

// wantWindows checks what a snapshot has of the tensors of windows.py.
func wantWindows(t *testing.T, s *snapshot.Snapshot) {
	t.Helper()
	x := &s.Windowed[0]
	if !x.WholeStep || x.Peak != 118<<20 || x.Before != 100<<20 || x.Reserved != 1<<30 || x.Time < 2*200*time.Millisecond {
		t.Errorf("the peak of a step: %d, of it from before %d, of %d reserved, in %v", x.Peak, x.Before, x.Reserved, x.Time)
	}
	type row struct{ Peak, StepBytes, StepObjects int64 }
	got := map[string]row{}
	for i := range x.Rows {
		r := &x.Rows[i]
		for _, l := range r.Sample.Stack {
			switch name := l.Lines[0].Function; name {
			case "forward", "loss", "backward", "SGD.step", "step":
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
	if d := cmp.Diff(map[string]row{"forward": {0, 8 << 20, 8}, "loss": {4 << 20, 4 << 20, 1}, "backward": {2 << 20, 2 << 20, 1}, "SGD.step": {12 << 20, 12 << 20, 1}}, got); d != "" {
		t.Errorf("by line (-want +got):\n%s", d)
	}
	if len(s.Steps) != 1 || s.Steps[0].Seen != x.Steps {
		t.Fatalf("steps %+v, want %d", s.Steps, x.Steps)
	}
	want := snapshot.Moved{AllocBytes: 26 << 20, AllocObjects: 11, FreedBytes: 26 << 20, FreedObjects: 11, PeakBytes: 118 << 20, InuseBytes: 106 << 20}
	for _, one := range s.Steps[0].Last {
		if one.Moved != want {
			t.Errorf("step %d: %+v", one.Number, one.Moved)
		}
	}
}
