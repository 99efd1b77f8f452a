package session_test

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/source/session"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
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

// A reset of the primary context of a process that was attached to late ends what was
// allocated in that context, and leaves physical memory and pools.
func TestResetAfterAttach(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "init", "cuMemAlloc_v2 1000")
	s := trace(t, session.Options{PIDs: []int{p.PID()}})
	run(t, p, "repeat 5 cuMemAlloc_v2 1000", "cuMemAlloc_v2 3m", "repeat 5 cuMemAlloc_v2 300k", "cuMemCreate 4m", "cuMemAllocAsync 1m", "raw cuDevicePrimaryCtxReset_v2 0")
	eventually(t, func() string {
		got := live(s.Snapshot(false), p.PID())
		if got["device"].Objects != 0 || got["vmm"].Bytes != 4<<20 || got["async"].Bytes != 1<<20 {
			return fmt.Sprintf("%+v", got)
		}
		return ""
	})
	for _, a := range s.Snapshot(false).Accounts {
		for _, l := range a.Lines {
			if l.Bytes < 0 {
				t.Errorf("%s is %d", l.Name, l.Bytes)
			}
		}
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

// A failure for want of memory is on the GPU of the context that it was in.
func TestOutOfMemoryNamesItsGPU(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "echo up")
	records := make(chan *snapshot.OutOfMemory, 10)
	s := trace(t, session.Options{PIDs: []int{p.PID()}, OutOfMemoryMax: 1, OutOfMemory: into(records)})
	run(t, p, "device 0", "cuMemAlloc_v2 1000", "device 1", "cuMemAlloc_v2 1000", "fail cuMemAlloc_v2 1 2", "expect 2 cuMemAlloc_v2 77m")
	snap := wantLive(t, s, p)
	select {
	case o := <-records:
		for _, x := range snap.Samples {
			if x.GPU == o.GPU && x.FailedObjects == 1 {
				return
			}
		}
		t.Errorf("a failure on GPU %q, not the one of its call site: %+v", o.GPU, snap.Samples)
	case <-time.After(5 * time.Minute):
		t.Fatal("waited five minutes for a record")
	}
}

// A live row says whether it is named by its address or by the driver's handle.
func TestAddressesAndHandles(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	s := trace(t, session.Options{PIDs: []int{p.PID()}})
	run(t, p, "init", "cuMemAlloc_v2 1000", "cuMemCreate 2m", "cuArrayCreate_v2 64", "cuImportExternalMemory 4096", "cuMemHostRegister 4096")
	addr := map[string]uint64{}
	for _, o := range objects(t, p) {
		addr[o.API] = o.Addr
	}
	want := map[string][2]uint64{}
	for _, api := range []string{"cuMemAlloc_v2", "cuMemHostRegister"} {
		want[api] = [2]uint64{addr[api], 0}
	}
	for _, api := range []string{"cuMemCreate", "cuArrayCreate_v2", "cuImportExternalMemory"} {
		want[api] = [2]uint64{0, addr[api]}
	}
	snap := wantLive(t, s, p)
	got := map[string][2]uint64{}
	for _, a := range snap.Live {
		got[snap.Samples[a.Sample].API] = [2]uint64{a.Address, a.Handle}
	}
	if !maps.Equal(want, got) {
		t.Errorf("rows with address and handle %x, want %x", got, want)
	}
}
