package testcuda

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// start runs a scripted workload that is killed when the test ends.
func start(t *testing.T, program Program, opts Options) *Process {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	p, err := Start(ctx, Get(t), program, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func run(t *testing.T, p *Process, commands ...string) []string {
	t.Helper()
	lines, err := p.Run(commands...)
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func stats(t *testing.T, p *Process) *Stats {
	t.Helper()
	s, err := p.Stats()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func objects(t *testing.T, p *Process) []Object {
	t.Helper()
	o, err := p.Objects()
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func wantLive(t *testing.T, p *Process, kind string, objects, bytes int64) {
	t.Helper()
	if got, want := stats(t, p).Live[kind], (Live{objects, bytes}); got != want {
		t.Errorf("live %s = %+v, want %+v", kind, got, want)
	}
}

const granule = 2 << 20

// rowBytes gives the bytes that the driver must count for one call of size n.
var rowBytes = map[string]func(n uint64) uint64{
	"cuMemAllocPitch":        func(n uint64) uint64 { return (n + 511) / 512 * 512 * 3 },
	"cuMemAllocPitch_v2":     func(n uint64) uint64 { return (n + 511) / 512 * 512 * 3 },
	"cuArrayCreate":          func(n uint64) uint64 { return n * 3 },
	"cuArrayCreate_v2":       func(n uint64) uint64 { return n * 3 * 4 },
	"cuArray3DCreate":        func(n uint64) uint64 { return n * 3 * 5 * 4 },
	"cuArray3DCreate_v2":     func(n uint64) uint64 { return n * 3 * 5 * 16 },
	"cuMipmappedArrayCreate": func(n uint64) uint64 { return n*4*4 + n/2*2*4 + n/4*1*4 },
}

// granular rows have sizes in whole granules, countless ones move no bytes.
var granular = map[string]bool{
	"cuMemAddressReserve": true, "cuMemCreate": true, "cuMemMap": true,
}

func counted(api string) bool {
	if rowBytes[api] != nil || granular[api] {
		return true
	}
	switch api {
	case "cuMemAlloc", "cuMemAlloc_v2", "cuMemAllocManaged", "cuMemAllocHost", "cuMemAllocHost_v2",
		"cuMemHostAlloc", "cuMemHostRegister", "cuMemHostRegister_v2",
		"cuMemAllocAsync", "cuMemAllocAsync_ptsz", "cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync_ptsz",
		"cuMemPoolImportPointer", "cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2",
		"cuImportExternalMemory", "cuExternalMemoryGetMappedBuffer", "cuGraphAddMemAllocNode":
		return true
	}
	return false
}

var aliases = map[string]string{
	"cuIpcOpenMemHandle":      "cuIpcOpenMemHandle_v2",
	"cuDevicePrimaryCtxReset": "cuDevicePrimaryCtxReset_v2",
}

func TestEveryRow(t *testing.T) {
	p := start(t, Workload, Options{})
	run(t, p, "init", "row cudaMalloc 1")
	for _, line := range run(t, p, "rows") {
		api, undo, _ := strings.Cut(line, " ")
		if !strings.HasPrefix(api, "cu") || strings.HasPrefix(api, "cuda") || strings.HasSuffix(api, ")") {
			continue
		}
		t.Run(api, func(t *testing.T) {
			name := api
			if a := aliases[api]; a != "" {
				name = a
			}
			before := stats(t, p)
			run(t, p, "row "+api+" 23 4096")
			after := stats(t, p)
			calls, wantCalls := after.APIs[name].OK-before.APIs[name].OK, uint64(23)
			if undo == api { // the same call maps and unmaps
				wantCalls *= 2
			}
			if calls != wantCalls {
				t.Errorf("%d calls, want %d", calls, wantCalls)
			}
			if undo != "-" && after.APIs[undo].OK-before.APIs[undo].OK < 23 {
				t.Errorf("%s: fewer than 23 calls", undo)
			}
			var want uint64
			for i := range uint64(23) {
				switch f := rowBytes[api]; {
				case f != nil:
					want += f(4096 + i)
				case granular[api]:
					want += (1 + i) * granule
				case counted(api):
					want += 4096 + i
				}
			}
			if got := after.APIs[name].Bytes - before.APIs[name].Bytes; counted(api) && got != want {
				t.Errorf("%d bytes, want %d", got, want)
			}
			for kind, live := range after.Live {
				if live != (Live{}) {
					t.Errorf("after the row, live %s = %+v", kind, live)
				}
			}
			for device, used := range after.Used {
				if used != 0 {
					t.Errorf("after the row, device %d has %d bytes", device, used)
				}
			}
		})
	}
}

func TestAddressesAreReusedLastFreedFirst(t *testing.T) {
	p := start(t, Workload, Options{})
	run(t, p, "cuMemAlloc_v2 4096", "cuMemAlloc_v2 4096", "cuMemAlloc_v2 4096")
	first := objects(t, p) // newest first
	if first[0].Addr == first[1].Addr || first[1].Addr == first[2].Addr {
		t.Fatalf("addresses are not distinct: %+v", first)
	}
	run(t, p, "free all", "cuMemAlloc_v2 4096", "cuMemAlloc_v2 4096")
	second := objects(t, p)
	if second[1].Addr != first[2].Addr || second[0].Addr != first[1].Addr {
		t.Errorf("got %+v after %+v, want the last freed first", second, first)
	}
	run(t, p, "row cuMemCreate 1", "cuMemCreate 2m")
	if a := objects(t, p)[0].Addr; a != 0x100000000 {
		t.Errorf("handle %#x, want the freed one", a)
	}
}

func TestFailures(t *testing.T) {
	p := start(t, Workload, Options{Env: []string{"TESTCUDA_FAIL=cuMemAlloc_v2:3:2,cuMemCreate:1:800"}})
	run(t, p, "repeat 2 cuMemAlloc_v2 4096", "expect 2 cuMemAlloc_v2 5000", "cuMemAlloc_v2 4096", "expect 800 cuMemCreate 2m", "cuMemCreate 2m")
	s := stats(t, p)
	if got, want := s.APIs["cuMemAlloc_v2"], (Count{OK: 3, Failed: 1, Bytes: 3 * 4096, FailedBytes: 5000}); got != want {
		t.Errorf("cuMemAlloc_v2 = %+v, want %+v", got, want)
	}
	run(t, p, "fail cuMemFree_v2 0 1", "expect 1 free cuMemAlloc_v2")
	wantLive(t, p, "device", 3, 3*4096)
	run(t, p, "fail cuMemFree_v2 0 0", "free all")
	wantLive(t, p, "device", 0, 0)
}

func TestBadTESTCUDA_FAIL(t *testing.T) {
	p := start(t, Workload, Options{Env: []string{"TESTCUDA_FAIL=cuMemAllok:1:2"}, Args: []string{"echo no"}})
	if out, code, err := p.Wait(); err != nil || code != 3 || len(out) != 0 {
		t.Errorf("exit %d, %v, output %q, want 3", code, err, out)
	}
}

func TestWrongFrees(t *testing.T) {
	p := start(t, Workload, Options{})
	run(t, p, "init", "raw cuMemFree_v2 0", "raw cuMemFreeHost 0", "expect 1 raw cuMemFree_v2 0x200000000000", "cuMemAlloc_v2", "cuMemHostAlloc", "cuMemAllocAsync")
	o := objects(t, p)
	run(t, p,
		fmt.Sprintf("expect 1 raw cuMemFree_v2 %d", o[2].Addr+512),
		fmt.Sprintf("expect 1 raw cuMemFree_v2 %d", o[1].Addr),
		fmt.Sprintf("expect 1 raw cuMemFreeHost %d", o[2].Addr),
		fmt.Sprintf("expect 1 raw cuMemFreeAsync %d", o[2].Addr),
		"free all",
		fmt.Sprintf("expect 1 raw cuMemFree_v2 %d", o[2].Addr),
		"expect 713 raw cuMemHostUnregister 4096",
		"expect 1 raw cuMemRelease 0x100000000",
		"expect 400 raw cuArrayDestroy 1")
	if got := stats(t, p).APIs["cuMemFree_v2"]; got.Failed != 4 || got.OK != 2 {
		t.Errorf("cuMemFree_v2 = %+v, want 2 ok and 4 failed", got)
	}
}

func TestOutOfMemory(t *testing.T) {
	p := start(t, Workload, Options{Env: []string{"TESTCUDA_TOTAL=10485760"}})
	run(t, p, "cuMemAlloc_v2 8m", "expect 2 cuMemAlloc_v2 4m", "expect 2 cuMemCreate 4m", "expect 2 cuMemAllocAsync 4m",
		"cuMemCreate 2m", "expect 2 cuMemAlloc_v2 512", "cuMemHostAlloc 4m", "cuMemAllocManaged 64m", "free cuMemAlloc_v2", "cuMemAlloc_v2 8m",
		"device 1", "cuMemAlloc_v2 10m")
	if s := stats(t, p); s.Used[0] != 10<<20 || s.Used[1] != 10<<20 {
		t.Errorf("used %d, want both devices full", s.Used)
	}
}

func TestForkedChildHasNoCUDA(t *testing.T) {
	p := start(t, Workload, Options{})
	run(t, p, "repeat 3 cuMemAlloc_v2 4096")
	parent := objects(t, p)
	lines := run(t, p, "fork { expect 3 raw cuMemAlloc_v2 0 4096; init; cuMemAlloc_v2 4096; objects; stats }")
	if len(lines) != 3 || !strings.HasSuffix(lines[2], "status 0") {
		t.Fatalf("got %q", lines)
	}
	child, err := ParseStats(lines[1])
	if err != nil {
		t.Fatal(err)
	}
	if child.PID == p.PID() || child.Live["device"] != (Live{1, 4096}) || child.APIs["cuMemAlloc_v2"].Failed != 1 {
		t.Errorf("child has %+v", child)
	}
	if !strings.Contains(lines[0], fmt.Sprintf(`"addr":%d,`, parent[2].Addr)) {
		t.Errorf("the child's first address is not the parent's first %#x: %s", parent[2].Addr, lines[0])
	}
	wantLive(t, p, "device", 3, 3*4096)
}

func TestContextsEndTheirMemory(t *testing.T) {
	p := start(t, Workload, Options{})
	run(t, p, "raw cuInit 0", "expect 201 raw cuCtxSynchronize", "cuMemAlloc_v2 1000", "cuMemCreate 2m",
		"cuCtxCreate_v2", "cuMemAlloc_v2 2000", "cuMemAllocManaged 3000", "cuMemHostAlloc 4000", "cuArrayCreate_v2 16", "cuMemAllocAsync 5000")
	wantLive(t, p, "device", 2, 3000)
	run(t, p, "cuCtxDestroy_v2")
	wantLive(t, p, "device", 1, 1000)
	for _, kind := range []string{"managed", "host", "array", "async"} {
		wantLive(t, p, kind, 0, 0)
	}
	wantLive(t, p, "vmm", 1, granule)
	run(t, p, "cuDevicePrimaryCtxReset_v2")
	wantLive(t, p, "device", 0, 0)
	wantLive(t, p, "vmm", 1, granule)
	// Retained twice by now: by init and after the reset.
	run(t, p, "cuMemAlloc_v2 1000", "raw cuDevicePrimaryCtxRelease 0")
	wantLive(t, p, "device", 1, 1000)
	run(t, p, "raw cuDevicePrimaryCtxRelease_v2 0", "expect 709 cuMemAlloc_v2")
	wantLive(t, p, "device", 0, 0)
}

func TestPhysicalMemoryEndsWithReferencesAndMappings(t *testing.T) {
	p := start(t, Workload, Options{})
	run(t, p, "cuMemAddressReserve 8m", "cuMemCreate 2m", "cuMemCreate 2m")
	o := objects(t, p)
	r, a, b := o[2].Addr, o[1].Addr, o[0].Addr
	run(t, p,
		fmt.Sprintf("raw cuMemMap %d 0x200000 0 %d 0", r, a),
		fmt.Sprintf("raw cuMemMap %d 0x200000 0 %d 0", r+granule, b),
		fmt.Sprintf("expect 1 raw cuMemMap %d 0x200000 0 %d 0", r, b), // taken
		fmt.Sprintf("raw cuMemRelease %d", a),
		fmt.Sprintf("expect 1 raw cuMemRelease %d", a))
	wantLive(t, p, "vmm", 2, 2*granule)
	run(t, p,
		fmt.Sprintf("expect 1 raw cuMemAddressFree %d 0x800000", r), // mapped
		fmt.Sprintf("expect 1 raw cuMemUnmap %d 0x600000", r),       // a gap
		fmt.Sprintf("raw cuMemUnmap %d 0x400000", r))                // two at once
	wantLive(t, p, "vmm", 1, granule)
	run(t, p, fmt.Sprintf("raw cuMemRelease %d", b), fmt.Sprintf("raw cuMemAddressFree %d 0x800000", r))
	wantLive(t, p, "vmm", 0, 0)
}

func TestThreadsCountExactly(t *testing.T) {
	p := start(t, Workload, Options{})
	run(t, p, "threads 8 repeat 1000 { cuMemAlloc_v2 4096+i; cuMemAllocAsync 512; cuMemFreeAsync }")
	wantLive(t, p, "device", 8000, 8*(4096*1000+999*1000/2))
	seen := map[uint64]bool{}
	for _, o := range objects(t, p) {
		if seen[o.Addr] {
			t.Fatalf("address %#x was handed out twice", o.Addr)
		}
		seen[o.Addr] = true
	}
	run(t, p, "free all")
	wantLive(t, p, "device", 0, 0)
	if got := stats(t, p).APIs["cuMemFree_v2"]; got.OK != 8000 || got.Bytes != 8*(4096*1000+999*1000/2) {
		t.Errorf("cuMemFree_v2 = %+v", got)
	}
}
