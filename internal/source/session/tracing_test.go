package session_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/source/session"
	"github.com/gpumemtrace/gpumemtrace/internal/source/unwind"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// tracing is a session whose snapshots show traced allocations alone.
type tracing struct{ *session.Session }

func (s tracing) Snapshot(live bool) *snapshot.Snapshot {
	return s.View(state.Want{Live: live}).Snapshot()
}

func (s tracing) Report(live bool) *snapshot.Snapshot {
	return s.Session.Report(state.Want{Live: live}).Snapshot()
}

// into returns an Options.OutOfMemory that hands over what it gets.
func into(records chan<- *snapshot.OutOfMemory) func(*state.Incident) {
	return func(in *state.Incident) { records <- in.OutOfMemory(state.Want{}) }
}

// trace starts a session. A test that may not trace is skipped, and fails in
// CI.
func trace(t *testing.T, opts session.Options) tracing {
	t.Helper()
	opts.Follow = true
	if opts.Stacks == "" {
		opts.Stacks = unwind.FramePointer // which starts at once
	}
	s, err := session.Start(opts)
	if errors.Is(err, probes.ErrPrivilege) && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return tracing{s}
}

func start(t *testing.T, program testcuda.Program, opts testcuda.Options) *testcuda.Process {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	t.Cleanup(cancel)
	p, err := testcuda.Start(ctx, testcuda.Get(t), program, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func run(t *testing.T, p *testcuda.Process, commands ...string) []string {
	t.Helper()
	lines, err := p.Run(commands...)
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// eventually waits until check, which looks at what arrives in the
// background, has nothing to say.
func eventually(t *testing.T, check func() string) {
	t.Helper()
	var text string
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if text = check(); text == "" {
			return
		}
	}
	t.Fatal(text)
}

func wait(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(5 * time.Minute):
		t.Fatalf("waited five minutes for %s", what)
	}
}

// live sums a snapshot as the stand-in does.
func live(s *snapshot.Snapshot, pid int) map[string]testcuda.Live {
	sum := map[string]testcuda.Live{}
	for _, x := range s.Samples {
		if x.PID == pid && x.InuseObjects != 0 {
			l := sum[x.Kind]
			l.Objects += x.InuseObjects
			l.Bytes += x.InuseBytes
			sum[x.Kind] = l
		}
	}
	return sum
}

// wantLive waits until the snapshot's sums are the driver's.
func wantLive(t *testing.T, s tracing, p *testcuda.Process) *snapshot.Snapshot {
	t.Helper()
	want, err := p.Stats()
	if err != nil {
		t.Fatal(err)
	}
	var snap *snapshot.Snapshot
	eventually(t, func() string {
		snap = s.Snapshot(true)
		got := live(snap, p.PID())
		for kind, w := range want.Live {
			g := got[kind]
			if kind == event.KindImported.String() { // whose sizes nobody tells
				g.Bytes, w.Bytes = 0, 0
			}
			if g != w {
				return fmt.Sprintf("live %s: %+v, the driver says %+v", kind, g, w)
			}
		}
		return ""
	})
	i := slices.IndexFunc(snap.Processes, func(x snapshot.Process) bool { return x.PID == p.PID() })
	if i < 0 {
		t.Fatalf("no totals of process %d", p.PID())
	}
	var used int64
	for _, n := range want.Used {
		used += n
	}
	total := snap.Processes[i]
	if total.Inuse != used || total.Managed != want.Live["managed"].Bytes ||
		total.Host != want.Live["host"].Bytes+want.Live["host_registered"].Bytes+want.Live["vmm_host"].Bytes ||
		total.Graph != want.Live["graph"].Bytes {
		t.Errorf("totals %+v, the driver says used %d and %+v", total, used, want.Live)
	}
	rows := map[string]testcuda.Live{}
	for _, a := range snap.Live {
		if x := snap.Samples[a.Sample]; x.PID == p.PID() {
			l := rows[x.Kind]
			l.Objects++
			l.Bytes += a.Size
			rows[x.Kind] = l
		}
	}
	for kind, l := range live(snap, p.PID()) {
		if rows[kind] != l {
			t.Errorf("rows of live %s: %+v, samples %+v", kind, rows[kind], l)
		}
	}
	return snap
}

func wantNoLoss(t *testing.T, s *snapshot.Snapshot) {
	t.Helper()
	for _, c := range s.Loss {
		if c.Value != 0 && !strings.HasPrefix(c.Name, "frames_") && !strings.HasPrefix(c.Name, "names_") {
			t.Logf("%s = %d", c.Name, c.Value)
		}
		for _, prefix := range []string{"events_", "calls_", "records_", "arguments_", "targets_", "runs_"} {
			if strings.HasPrefix(c.Name, prefix) && c.Value != 0 {
				t.Errorf("%s = %d", c.Name, c.Value)
			}
		}
	}
}
