package session_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/source/session"
	"github.com/gpumemtrace/gpumemtrace/internal/source/unwind"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

// A recording that ends right after a call has that call's stack and its names, whether
// another one follows it or the trace ends, though nobody has looked.
func TestRecordingEndsAtOnce(t *testing.T) {
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first.gmt"), filepath.Join(dir, "second.gmt")
	p := start(t, testcuda.WorkloadNoFP, testcuda.Options{Libs: testcuda.LibsNoFP})
	run(t, p, "init")
	s := trace(t, session.Options{PIDs: []int{p.PID()}, Stacks: unwind.Always, Recording: first})
	run(t, p, "via l cuMemAlloc_v2 1000")
	f, err := os.Create(second)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Record(f, record.WriterOptions{}); err != nil {
		t.Fatal(err)
	}
	run(t, p, "via r cuMemAlloc_v2 2000")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{first: 1, second: 2} {
		st, err := replay.Play(path, replay.Options{At: replay.End})
		if err != nil {
			t.Fatal(err)
		}
		samples := st.View(state.Want{}).Snapshot().Samples
		for _, x := range samples {
			if x.Owner != "application" {
				t.Errorf("%s: the owner of %d bytes is %q", filepath.Base(path), x.InuseBytes, x.Owner)
			}
		}
		if len(samples) != want {
			t.Errorf("%s: %d samples, want %d", filepath.Base(path), len(samples), want)
		}
	}
}
