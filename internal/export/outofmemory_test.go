package export

import (
	"errors"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshottest"
)

// failure is a PyTorch process that asked for too much beside another one.
func failure() *snapshot.OutOfMemory {
	s := snapshottest.Training()
	return &snapshot.OutOfMemory{
		Time: snapshottest.Start, PID: 4711, Process: "python3", Thread: 4712, Requested: 4 << 30, API: "cuMemAlloc_v2", Calls: 1, GPU: "0",
		Stack:     s.Samples[0].Stack,
		Framework: &snapshot.FrameworkMemory{Name: "PyTorch", Requested: 6 << 30, Allocated: 5 << 30, Reserved: 7 << 30},
		GPUs: []snapshot.GPUMemory{{GPU: "0", Name: "NVIDIA H200", Total: 141 << 30, Used: 140 << 30, Free: 1 << 30, Processes: []snapshot.GPUProcess{
			{PID: 4711, Name: "python3", Bytes: 9 << 30, Known: true}, {PID: 10, Name: "serve\x1b"},
		}}},
		Snapshot: s,
	}
}

func TestOutOfMemory(t *testing.T) {
	recovered := failure()
	recovered.Recovered, recovered.Framework, recovered.Stack = true, nil, snapshottest.Hostile().Samples[0].Stack
	recovered.GPUs, recovered.Snapshot = nil, snapshottest.Hostile()
	// Every byte of the process is explained, on two GPUs, one of which another
	// process shares that was attached to late.
	driver := failure()
	driver.PID, driver.Process, driver.API, driver.Snapshot = 20, "serve", "cuMemAllocAsync", snapshottest.Driver()
	driver.Stack = driver.Snapshot.Samples[2].Stack
	driver.GPUs = append([]snapshot.GPUMemory{{GPU: "1", Name: "NVIDIA H200", Total: 141 << 30, Used: 442 << 20, Free: 140 << 30}}, driver.GPUs...)
	late := failure()
	late.PID, late.Process, late.Framework, late.Snapshot = 21, "serve", nil, snapshottest.Driver()
	limit := failure()
	limit.Calls, limit.Snapshot = 0, &snapshot.Snapshot{}
	for name, o := range map[string]*snapshot.OutOfMemory{"failed": failure(), "recovered": recovered, "limit": limit, "driver": driver, "late": late} {
		var b strings.Builder
		if err := OutOfMemory(&b, o); err != nil {
			t.Fatal(err)
		}
		snapshottest.Golden(t, "outofmemory/"+name+".txt", []byte(b.String()))
	}
	full := errors.New("disk full")
	if err := OutOfMemory(limitedWriter{full}, failure()); !errors.Is(err, full) {
		t.Errorf("got %v, want %v", err, full)
	}
}

func TestSummary(t *testing.T) {
	for name, verbose := range map[string]bool{"quiet": false, "verbose": true} {
		var b strings.Builder
		if err := Summary(&b, snapshottest.Training(), verbose); err != nil {
			t.Fatal(err)
		}
		snapshottest.Golden(t, "summary/"+name+".txt", []byte(b.String()))
	}
	full := errors.New("disk full")
	if err := Summary(limitedWriter{full}, snapshottest.Training(), false); !errors.Is(err, full) {
		t.Errorf("got %v, want %v", err, full)
	}
}
