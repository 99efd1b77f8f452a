package session_test

import (
	"fmt"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/source/session"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

func objects(t *testing.T, p *testcuda.Process) []testcuda.Object {
	t.Helper()
	o, err := p.Objects()
	if err != nil || len(o) == 0 {
		t.Fatalf("objects: %v, %v", o, err)
	}
	return o
}

// wantCounter waits until the user would see that name counts want.
func wantCounter(t *testing.T, s tracing, name string, want uint64) {
	t.Helper()
	eventually(t, func() string {
		for _, c := range s.Snapshot(false).Loss {
			if c.Name == name && c.Help != "" {
				if c.Value == want {
					return ""
				}
				return fmt.Sprintf("%s = %d, want %d", name, c.Value, want)
			}
		}
		return "no counter " + name
	})
}

// What a stream under capture allocates is the graph's, and what the driver
// refuses to free there stays.
func TestCapture(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	s := trace(t, session.Options{PIDs: []int{p.PID()}})
	run(t, p, "init", "cuMemHostRegister 4096", "cuMemAllocAsync 700", "cuStreamBeginCapture_v2")
	o := objects(t, p)
	stream, real, scratch := o[0].Addr, o[1].Addr, o[2].Addr
	run(t, p,
		fmt.Sprintf("raw cuMemAllocAsync %d 5000 %d", scratch, stream),
		fmt.Sprintf("expect 1 raw cuMemFreeAsync %d %d", real, stream))
	snap := wantLive(t, s, p)
	if got := live(snap, p.PID()); got["graph"].Bytes != 5000 || got["async"].Bytes != 700 {
		t.Errorf("under capture: %+v", got)
	}
	run(t, p, "cuStreamEndCapture", // whose graph is destroyed
		"raw cuStreamBeginCapture_v2_ptsz 0 0",
		fmt.Sprintf("raw cuMemAllocAsync_ptsz %d 300 2", scratch),
		fmt.Sprintf("raw cuStreamEndCapture_ptsz 0 %d", scratch+8),
		fmt.Sprintf("raw cuMemAllocAsync_ptsz %d 40 0", scratch))
	snap = wantLive(t, s, p)
	if got := live(snap, p.PID()); got["graph"].Bytes != 300 || got["async"].Bytes != 740 {
		t.Errorf("after capture: %+v", got)
	}
	wantCounter(t, s, "allocations_during_capture", 0)
	wantCounter(t, s, "captures_unmatched", 0)
}

// The end of a graph ends what it cannot have left behind.
func TestGraphDestroy(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	s := trace(t, session.Options{PIDs: []int{p.PID()}})
	run(t, p, "init", "cuMemHostRegister 4096")
	scratch := objects(t, p)[0].Addr
	for _, api := range []string{"cuGraphAddMemAllocNode", "cuGraphAddNode", "cuGraphAddNode_v2"} {
		run(t, p, api+" 640")
		o := objects(t, p)[0]
		if got := live(wantLive(t, s, p), p.PID()); got["graph"].Bytes != 640 {
			t.Errorf("%s: %+v", api, got)
		}
		run(t, p, fmt.Sprintf("raw cuGraphDestroy %d", o.Extra))
		if got := live(wantLive(t, s, p), p.PID()); got["graph"].Bytes != 0 {
			t.Errorf("%s, and the graph was destroyed: %+v", api, got)
		}
	}
	run(t, p, "cuGraphAddNode_v2 640")
	o := objects(t, p)[0]
	run(t, p, fmt.Sprintf("raw cuGraphInstantiateWithFlags %d %d 0", scratch, o.Extra), fmt.Sprintf("raw cuGraphDestroy %d", o.Extra))
	snap := wantLive(t, s, p)
	if got := live(snap, p.PID()); got["graph"].Bytes != 640 {
		t.Errorf("a graph that may have run was destroyed: %+v", got)
	}
	wantCounter(t, s, "graph_memory_kept", 1)
	run(t, p, fmt.Sprintf("raw cuMemFreeAsync %d 0", o.Addr))
	if got := live(wantLive(t, s, p), p.PID()); got["graph"].Bytes != 0 {
		t.Errorf("and its memory freed: %+v", got)
	}
}
