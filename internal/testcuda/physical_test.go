package testcuda

import (
	"debug/elf"
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
