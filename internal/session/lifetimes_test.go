package session_test

import (
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/session"
	"github.com/gpumemtrace/gpumemtrace/internal/testcuda"
)

// A context that comes and goes after a late attach takes nothing with it that
// was made in an older one.
func TestContextAfterAttach(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "init")
	s := trace(t, session.Options{PIDs: []int{p.PID()}})
	run(t, p, "cuMemAlloc_v2 10g", "cuCtxCreate_v2", "cuMemAlloc_v2 1000", "cuCtxDestroy_v2")
	snap := wantLive(t, s, p)
	if got := live(snap, p.PID()); got["device"].Bytes != 10<<30 {
		t.Errorf("live %+v", got)
	}
	wantCounter(t, s, "context_owner_unknown", 0)
}

// Memory that was opened twice is open until it is closed twice.
func TestOpenedTwice(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	s := trace(t, session.Options{PIDs: []int{p.PID()}})
	run(t, p, "init", "repeat 2 cuIpcOpenMemHandle_v2(same) 4096")
	if o := objects(t, p); o[0].Addr != o[1].Addr {
		t.Fatalf("opened at %#x and %#x", o[0].Addr, o[1].Addr)
	}
	for _, want := range []int64{1, 0} {
		run(t, p, "cuIpcCloseMemHandle")
		if got := live(wantLive(t, s, p), p.PID()); got["imported"].Objects != want {
			t.Errorf("live %+v, want %d imported", got, want)
		}
	}
}
