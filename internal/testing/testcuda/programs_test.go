package testcuda

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func symbols(t *testing.T, path string) map[string]elf.Symbol {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	list, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	if static, err := f.Symbols(); err == nil {
		list = append(list, static...)
	}
	all := map[string]elf.Symbol{}
	for _, s := range list {
		if s.Section != elf.SHN_UNDEF {
			all[s.Name] = s
		}
	}
	return all
}

func TestRuntimeGoesThroughTheDriver(t *testing.T) {
	kit := Get(t)
	for _, program := range []Program{Workload, WorkloadLate, WorkloadStatic, WorkloadStripped, WorkloadNoFP} {
		t.Run(string(program), func(t *testing.T) {
			p := start(t, program, Options{})
			run(t, p, "cudaMallocAsync 4096", "free all")
			if got := stats(t, p).APIs["cuMemAllocAsync"]; got.OK != 1 || got.Failed != 1 {
				t.Errorf("first cudaMallocAsync: cuMemAllocAsync = %+v, want one failure and one success", got)
			}
			for runtime, driver := range map[string]string{
				"cudaMalloc": "cuMemAlloc_v2", "cudaMallocManaged": "cuMemAllocManaged", "cudaMallocHost": "cuMemHostAlloc",
				"cudaHostAlloc": "cuMemHostAlloc", "cudaHostRegister": "cuMemHostRegister_v2", "cudaMallocPitch": "cuMemAllocPitch_v2",
				"cudaMalloc3D": "cuMemAllocPitch_v2", "cudaMallocArray": "cuArray3DCreate_v2", "cudaMalloc3DArray": "cuArray3DCreate_v2",
				"cudaMallocMipmappedArray": "cuMipmappedArrayCreate", "cudaMallocAsync": "cuMemAllocAsync",
				"cudaMallocAsync_ptsz": "cuMemAllocAsync_ptsz", "cudaMallocFromPoolAsync": "cuMemAllocFromPoolAsync",
				"cudaMallocFromPoolAsync_ptsz": "cuMemAllocFromPoolAsync_ptsz",
			} {
				before := stats(t, p)
				run(t, p, "row "+runtime+" 23")
				if got := stats(t, p).APIs[driver].OK - before.APIs[driver].OK; got != 23 {
					t.Errorf("%s: %d calls of %s, want 23", runtime, got, driver)
				}
			}
			run(t, p, "cudaMalloc 1000", "cudaDeviceReset")
			wantLive(t, p, "device", 0, 0)
			run(t, p, "cudaMalloc 1000") // a new primary context
			wantLive(t, p, "device", 1, 1000)
			s := stats(t, p)
			if s.APIs["cuGetProcAddress_v2"].OK == 0 || s.APIs["cuDevicePrimaryCtxReset_v2"].OK != 1 {
				t.Errorf("APIs = %+v", s.APIs)
			}
			_, inside := symbols(t, kit.Path(program))["cudaMalloc"]
			if want := program == WorkloadStatic; inside != want {
				t.Errorf("defines cudaMalloc: %v, want %v", inside, want)
			}
		})
	}
}

func TestLateVariantLinksNoCUDA(t *testing.T) {
	p := start(t, WorkloadLate, Options{})
	run(t, p, "echo started")
	mapped := func() bool {
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.PID()))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(maps), "libcuda.so.1")
	}
	if mapped() {
		t.Error("libcuda is mapped before dlopen")
	}
	run(t, p, "dlopen")
	if !mapped() {
		t.Error("libcuda is not mapped after dlopen")
	}
}

func TestSymbols(t *testing.T) {
	kit := Get(t)
	now, old := symbols(t, kit.LibCUDA), symbols(t, kit.LibCUDAOld)
	for a, b := range aliases {
		if now[a].Value == 0 || now[a].Value != now[b].Value {
			t.Errorf("%s at %#x and %s at %#x, want one address", a, now[a].Value, b, now[b].Value)
		}
	}
	for _, name := range []string{"cuMemAlloc", "cuMemAllocPitch", "cuMemAllocHost", "cuMemHostRegister", "cuMemFree", "cuArrayCreate", "cuArray3DCreate", "cuCtxDestroy", "cuDevicePrimaryCtxRelease"} {
		if now[name].Value == 0 || now[name].Value == now[name+"_v2"].Value {
			t.Errorf("%s at %#x and its _v2 at %#x, want two addresses", name, now[name].Value, now[name+"_v2"].Value)
		}
	}
	for _, name := range []string{"cuMemCreate", "cuMemPoolCreate", "cuMemAllocAsync", "cuGetProcAddress_v2", "cuCtxCreate_v4"} {
		if _, ok := old[name]; ok || now[name].Value == 0 {
			t.Errorf("%s: in the old driver %v, in the new at %#x", name, ok, now[name].Value)
		}
	}
	p := start(t, WorkloadStatic, Options{Libs: LibsOld})
	run(t, p, "row cudaMalloc 23", "expect 801 cudaMallocAsync")
	if got := stats(t, p).APIs["cuMemAlloc_v2"].OK; got != 23 {
		t.Errorf("old driver: %d calls, want 23", got)
	}
}

func TestScript(t *testing.T) {
	kit := Get(t)
	p := start(t, Workload, Options{Args: []string{"cuMemAlloc_v2; via lrl cuMemAlloc_v2; echo awake; exec " + kit.Path(WorkloadStatic) + " ready;exit 5"}})
	if rest, code, err := p.Wait(); err != nil || code != 0 || !slices.Equal(rest, []string{"awake", "ready"}) {
		t.Errorf("around exec: %q, exit %d, %v", rest, code, err)
	}
	for script, want := range map[string]int{
		"exit 7":                                 7,
		"kill 9":                                 -1,
		"no-such-command":                        3,
		"init; raw cuMemFree_v2 1":               3,
		"{ echo unbalanced":                      3,
		"init; expect 1 raw cuMemFree_v2 0":      3,
		"init; try raw cuMemFree_v2 1; _exit 11": 11,
	} {
		p := start(t, Workload, Options{Args: []string{script}})
		if _, code, err := p.Wait(); err != nil || code != want {
			t.Errorf("%q: exit %d, %v, want %d", script, code, err, want)
		}
	}
}

func TestTrainLeaks(t *testing.T) {
	p := start(t, Train, Options{Args: []string{"-steps", "9", "-interval", "0"}})
	rest, code, err := p.Wait()
	// 2 x 247137792 bytes of weights and gradients, 679477248 of moments,
	// 3 x 3 MiB cached, 9 x 2 MiB leaked.
	if err != nil || code != 0 || len(rest) != 1 || rest[0] != "in use 1146 MiB of 81920 MiB" {
		t.Errorf("%q, exit %d, %v", rest, code, err)
	}
}

func TestHammerEndsWithNothingLive(t *testing.T) {
	p := start(t, Hammer, Options{Args: []string{"-threads", "4", "-seconds", "0.5"}})
	rest, code, err := p.Wait()
	if err != nil || code != 0 || len(rest) != 1 {
		t.Fatalf("%q, exit %d, %v", rest, code, err)
	}
	s, err := ParseStats(rest[0])
	if err != nil {
		t.Fatal(err)
	}
	alloc, free := s.APIs["cuMemAlloc_v2"], s.APIs["cuMemFree_v2"]
	if alloc.OK == 0 || alloc != free || s.Used[0] != 0 || s.Live["async"] != (Live{}) {
		t.Errorf("allocated %+v, freed %+v, used %d", alloc, free, s.Used)
	}
	if got, want := s.Physical[0], int64(emptyContext+32*mib); got != want { // one object of the pool's
		t.Errorf("physical %d, want %d", got, want)
	}
}

func TestBuildIsReused(t *testing.T) {
	kit := Get(t)
	again, err := Build(filepath.Dir(kit.Dir))
	if err != nil || *again != *kit {
		t.Fatalf("built %+v, %v, want %+v", again, err, kit)
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(kit.Dir), "building-*"))
	if err != nil || len(left) != 0 {
		t.Logf("another build is under way: %q", left)
	}
}

func TestSourcesHaveNoWarnings(t *testing.T) {
	Get(t)
	for define, sources := range map[string][][]string{
		"-ULATE":         {workload, families, kernelDriver, {"src/cudart.c", "src/train.c", "src/hammer.c"}},
		"-DLATE":         {workload},
		"-DTESTCUDA_OLD": {oldFamilies},
	} {
		args := []string{"-std=gnu11", "-fsyntax-only", "-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Wno-unused-parameter", "-Werror", define}
		args = append(args, slices.Concat(sources...)...)
		if out, err := exec.Command(compiler, args...).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", define, err, out)
		}
	}
}
