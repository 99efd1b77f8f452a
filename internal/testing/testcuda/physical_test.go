package testcuda

import (
	"debug/elf"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

const (
	mib          = 1 << 20
	emptyContext = 543162368 // bytes on an H200
)

func wantPhysical(t *testing.T, p *Process, step string, want int64) {
	t.Helper()
	if got := stats(t, p).Physical[0]; got != want {
		t.Errorf("%s: %d bytes, want %d", step, got, want)
	}
}

// TestPhysicalTotals takes the steps of a program that was measured on an
// H200, and wants what NVML said there after each. That one had 20 MiB more of
// code, loaded with its module, and from its launches on a heap of 10 MiB.
func TestPhysicalTotals(t *testing.T) {
	for _, libs := range []Libs{LibsDefault, LibsNoFP} {
		p := start(t, Workload, Options{Libs: libs})
		for _, s := range []struct {
			commands string
			want     int64
		}{
			{"raw cuInit 0", 0},
			{"init", 543162368},
			{"repeat 3 cuMemAlloc_v2 1k", 545259520},
			{"cuMemAlloc_v2 3m", 549453824},
			{"cuMemAlloc_v2 100m", 654311424},
			{"cuMemAlloc_v2 1048581", 654311424},
			{"repeat 10 cuMemAlloc_v2 300k", 658505728},
			{"repeat 10 cuMemFree_v2", 654311424},
			{"repeat 3 cuMemFree_v2", 545259520},
			{"repeat 3 cuMemFree_v2", 543162368},
			{"cuMemHostAlloc 10m; cuMemHostAlloc 1000; cuMemAllocManaged 8m; cuMemFree_v2", 543162368},
			{"repeat 4 cuStreamCreate", 545259520},
			{"cuMemAlloc_v2 1m", 547356672},
			{"repeat 2 cuStreamCreateWithPriority", 549453824},
			{"cuCtxCreate_v4; cuMemAlloc_v2 5m", 549453824 + emptyContext + 6*mib},
			{"cuCtxDestroy_v2", 549453824},
			{"cuCtxSetCurrent", 549453824},
			{"cuModuleLoadData", 717225984 - 20*mib},
			{"cuLaunchKernel 16384", 4869586944 - 20*mib + 2*mib},
			{"cuLaunchKernel 16384; cuLaunchKernel 64", 4869586944 - 18*mib},
			{"cuModuleUnload", 4857004032 - 8*mib},
			{"cuMemAllocAsync 5m", 4857004032 + 24*mib},
			{"cuMemAllocAsync 50m", 4857004032 + 56*mib},
			{"cuMemFreeAsync; cuMemFreeAsync", 4857004032 + 56*mib},
			{"raw cuCtxSynchronize", 4857004032 - 8*mib},
			{"cuMemPoolCreate; cuMemPoolDestroy", 4857004032 - 8*mib},
			{"cuMemCreate 20m", 4857004032 + 12*mib},
			{"cuMemRelease", 4857004032 - 8*mib},
			{"cuGraphInstantiateWithFlags", 4857004032 - 4*mib},
			{"cuGraphExecDestroy", 4857004032 - 4*mib},
			{"cuArrayCreate_v2 1000000", 4857004032 + 8*mib}, // 3 rows of 4 bytes
			{"cuArrayDestroy", 4857004032 - 4*mib},
			{"repeat 4 cuStreamDestroy", 4857004032 - 4*mib},
			{"cuMemFreeHost; cuMemFreeHost", 4857004032 - 4*mib},
			{"raw cuDevicePrimaryCtxReset_v2 0", 0},
			{"init", 543162368},
			{"raw cuDevicePrimaryCtxRelease_v2 0", 543162368},
		} {
			run(t, p, s.commands)
			wantPhysical(t, p, s.commands, s.want)
		}
	}
}

func TestPhysicalTotalsAreOfEachDevice(t *testing.T) {
	p := start(t, Workload, Options{})
	run(t, p, "device 1", "cuMemAlloc_v2 4m")
	if got := stats(t, p).Physical; got[0] != 0 || got[1] != emptyContext+4*mib {
		t.Errorf("physical %d, want all of it on device 1", got)
	}
}

// What virtual memory management and pools took outlives a context.
func TestPhysicalMemoryOutlivesTheContext(t *testing.T) {
	p := start(t, Workload, Options{})
	run(t, p, "cuMemCreate 4m", "cuMemAllocAsync 1m", "raw cuDevicePrimaryCtxReset_v2 0")
	wantPhysical(t, p, "after the reset", 36*mib)
	run(t, p, "free cuMemCreate")
	wantPhysical(t, p, "after the release", 32*mib)
}

// NVIDIA's libcuda calls ioctl through a stub that jumps by way of a slot.
func TestIoctlStub(t *testing.T) {
	kit := Get(t)
	for _, libs := range []string{kit.LibCUDA, kit.LibCUDAOld, kit.Path("nofp/libcuda.so.1")} {
		f, err := elf.Open(libs)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		imported, err := f.ImportedSymbols()
		if err != nil {
			t.Fatal(err)
		}
		symbols, err := f.DynamicSymbols()
		if err != nil {
			t.Fatal(err)
		}
		var library string
		for _, s := range imported {
			if s.Name == "ioctl" {
				library = s.Library
			}
		}
		if library != "libtestrm.so" {
			t.Errorf("%s: ioctl comes from %q", libs, library)
		}
		slot, plt := jumpSlot(t, f, symbols, "ioctl"), f.Section(".plt")
		if slot == 0 || plt == nil {
			t.Fatalf("%s: slot %#x of ioctl, .plt %v", libs, slot, plt)
		}
		if f.Machine == elf.EM_X86_64 && !jumpsTo(t, plt, slot) {
			t.Errorf("%s: no stub jumps by way of %#x", libs, slot)
		}
	}
}

// jumpSlot returns the address of a function's slot, or 0.
func jumpSlot(t *testing.T, f *elf.File, symbols []elf.Symbol, name string) uint64 {
	t.Helper()
	section := f.Section(".rela.plt")
	if section == nil {
		return 0
	}
	data, err := section.Data()
	if err != nil {
		t.Fatal(err)
	}
	for ; len(data) >= 24; data = data[24:] {
		offset, info := f.ByteOrder.Uint64(data), f.ByteOrder.Uint64(data[8:])
		if i := info >> 32; i > 0 && symbols[i-1].Name == name {
			return offset
		}
	}
	return 0
}

// jumpsTo says whether an entry of a .plt is "jmp *slot(%rip)".
func jumpsTo(t *testing.T, plt *elf.Section, slot uint64) bool {
	t.Helper()
	data, err := plt.Data()
	if err != nil {
		t.Fatal(err)
	}
	for at := 0; at+16 <= len(data); at += 16 {
		if data[at] != 0xff || data[at+1] != 0x25 {
			continue
		}
		distance := int32(uint32(data[at+2]) | uint32(data[at+3])<<8 | uint32(data[at+4])<<16 | uint32(data[at+5])<<24)
		if plt.Addr+uint64(at)+6+uint64(int64(distance)) == slot {
			return true
		}
	}
	return false
}

// NVML counts shared memory with its owner; an importer has a name of it alone.
func TestSharedMemoryCountsWithItsOwner(t *testing.T) {
	owner, importer := start(t, Workload, Options{}), start(t, Workload, Options{})
	file := filepath.Join(t.TempDir(), "handle")
	run(t, owner, "cuMemAlloc_v2 8m", "export "+file)
	run(t, importer, "init", "import "+file, "import "+file)
	wantPhysical(t, owner, "owner", emptyContext+8*mib)
	wantPhysical(t, importer, "importer", emptyContext)
	wantLive(t, importer, "imported", 1, 8*mib)
	// In one process the memory lives on under its other name.
	run(t, owner, "import "+file, "free cuMemAlloc_v2")
	wantPhysical(t, owner, "owner and importer", emptyContext+8*mib)
	run(t, owner, "cuIpcCloseMemHandle")
	wantPhysical(t, owner, "after both", emptyContext)
}

// Every row gives back what it took, but for what its context keeps to use
// again.
func TestEveryRowGivesPhysicalMemoryBack(t *testing.T) {
	p := start(t, Workload, Options{})
	run(t, p, "init")
	for _, line := range run(t, p, "rows") {
		api, _, _ := strings.Cut(line, " ")
		sizes := " 23 4096"
		if api == "cudaSetDevice" {
			sizes = " 2 0" // devices
		}
		run(t, p, "row "+api+sizes, "device 0")
		before := stats(t, p).Physical
		run(t, p, "row "+api+sizes, "device 0")
		if after := stats(t, p).Physical; after[0] > before[0] || after[1] > before[1] {
			t.Errorf("%s: %d bytes, then %d", api, before, after)
		}
	}
}

func TestKernelDriverHasNoMemoryLeft(t *testing.T) {
	p := start(t, Workload, Options{Env: []string{fmt.Sprintf("TESTCUDA_PHYSICAL=%d", emptyContext+40*mib)}})
	run(t, p, "cuMemAlloc_v2 6m", "expect 2 cuMemAlloc_v2 36m", "expect 2 cuCtxCreate_v4", "expect 2 cuMemCreate 36m", "cuMemAllocAsync 1m",
		"expect 2 cuMemAllocAsync 32m", "cuMemAlloc_v2 1m", "expect 2 cuModuleLoadData", "expect 2 cuArrayCreate_v2", "cuLaunchKernel 16384")
	wantPhysical(t, p, "full", emptyContext+40*mib)
	wantLive(t, p, "device", 2, 7*mib)
	wantLive(t, p, "async", 1, mib)
	run(t, p, "free all", "raw cuCtxSynchronize")
	wantPhysical(t, p, "freed", emptyContext)
}

func TestForkedChildHasNoPhysicalMemory(t *testing.T) {
	p := start(t, Workload, Options{})
	run(t, p, "cuMemAlloc_v2 4m")
	for commands, want := range map[string]int64{"stats": 0, "init; cuMemAlloc_v2; stats": emptyContext + 2*mib} {
		lines := run(t, p, "fork { "+commands+" }")
		if len(lines) != 2 || !strings.HasSuffix(lines[1], "status 0") {
			t.Fatalf("got %q", lines)
		}
		child, err := ParseStats(lines[0])
		if err != nil {
			t.Fatal(err)
		}
		if child.Physical[0] != want {
			t.Errorf("%s: %d bytes, want %d", commands, child.Physical[0], want)
		}
	}
	wantPhysical(t, p, "the parent", emptyContext+4*mib)
}
