package probes

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

// An allocator as PyTorch's is declared, of which libc10_cuda exports nothing but a
// function that gets one. Each method throws for a pool of which the first half is 7.
const (
	allocatorHeader = `#include <functional>
#include <utility>
struct CUstream_st;
namespace c10::cuda::CUDACachingAllocator {
using MempoolId_t = std::pair<unsigned long long, unsigned long long>;
struct CUDAAllocator {
	virtual void beginAllocateToPool(signed char device, MempoolId_t id, std::function<bool(CUstream_st *)> filter) = 0;
	virtual void endAllocateToPool(signed char device, MempoolId_t id) = 0;
};
}
__attribute__((visibility("default"))) c10::cuda::CUDACachingAllocator::CUDAAllocator *allocator();
`
	allocatorSource = `
namespace c10::cuda::CUDACachingAllocator::Native {
class NativeCachingAllocator : public CUDAAllocator {
	void beginAllocateToPool(signed char device, MempoolId_t id, std::function<bool(CUstream_st *)> filter) override {
		if (id.first == 7) throw 7;
		if (filter) filter(nullptr);
	}
	void endAllocateToPool(signed char device, MempoolId_t id) override { if (id.first == 7) throw 7; }
};
NativeCachingAllocator it;
}
c10::cuda::CUDACachingAllocator::CUDAAllocator *allocator() { return &c10::cuda::CUDACachingAllocator::Native::it; }
`
	allocatorProgram = `#include <cstdio>
int main() {
	puts("ready"); fflush(stdout); getchar();
	auto *a = allocator();
	a->beginAllocateToPool(0, {1, 0}, [](CUstream_st *) { return true; });
	a->endAllocateToPool(0, {1, 0});
	a->beginAllocateToPool(3, {0, 1ull << 40}, nullptr);
	try { a->beginAllocateToPool(1, {7, 0}, nullptr); } catch (int) {}
	try { a->endAllocateToPool(1, {7, 0}); } catch (int) {}
	a->endAllocateToPool(3, {0, 1ull << 40});
}`
)

// builtAllocator builds the library, with more arguments for it, and the program.
func builtAllocator(t *testing.T, more ...string) (program string) {
	t.Helper()
	testcuda.Get(t) // gcc
	dir := t.TempDir()
	write(t, filepath.Join(dir, "c10_cuda.cc"), allocatorHeader+allocatorSource)
	write(t, filepath.Join(dir, "main.cc"), allocatorHeader+allocatorProgram)
	library := append([]string{"-std=c++17", "-shared", "-fPIC", "-O1", "-fvisibility=hidden", "-o", filepath.Join(dir, "libc10_cuda.so"), filepath.Join(dir, "c10_cuda.cc")}, more...)
	for _, args := range [][]string{library, {"-std=c++17", "-O1", "-o", filepath.Join(dir, "main"), filepath.Join(dir, "main.cc"), "-L" + dir, "-lc10_cuda", "-Wl,-rpath," + dir}} {
		if out, err := exec.Command("g++", args...).CombinedOutput(); err != nil {
			t.Fatalf("g++: %v\n%s", err, out)
		}
	}
	return filepath.Join(dir, "main")
}

// The methods are found though nothing exports them, and told of at their entry: an exception
// passes.
func TestPrivatePools(t *testing.T) {
	program := builtAllocator(t)
	want := []event.Event{
		{Op: event.OpPrivatePoolBegin, Handle: 1}, {Op: event.OpPrivatePoolEnd, Handle: 1},
		{Op: event.OpPrivatePoolBegin, Device: 3, Part: 1 << 40},
		{Op: event.OpPrivatePoolBegin, Device: 1, Handle: 7}, {Op: event.OpPrivatePoolEnd, Device: 1, Handle: 7},
		{Op: event.OpPrivatePoolEnd, Device: 3, Part: 1 << 40},
	}
	cmd := exec.Command(program)
	tr, end := heldProgram(t, Options{Tensors: true}, cmd)
	end()
	if code := cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("the program ended with %d", code)
	}
	var got []event.Event
	for _, e := range tr.drain() {
		if e.Op != event.OpExit {
			got = append(got, e)
		}
	}
	if len(got) != len(want) {
		t.Fatalf("%d events, want %d: %+v", len(got), len(want), got)
	}
	for i, w := range want {
		e := got[i]
		if e.Time == 0 || e.TID != uint32(cmd.Process.Pid) || !strings.Contains(apiName(e.API), "AllocateToPool") {
			t.Errorf("event %d: %+v", i, e)
		}
		w.Time, w.Proc, w.TID, w.API, w.Tenant = e.Time, e.Proc, e.TID, e.API, e.Tenant
		if e != w {
			t.Errorf("event %d: %+v, want %+v", i, e, w)
		}
	}
	tr.wantLoss(nil)
}

// A library without a table of symbols is told of, and one is not looked at where nobody
// asks for tensors.
func TestPrivatePoolsUnknown(t *testing.T) {
	cmd := exec.Command(builtAllocator(t, "-s"))
	tr, end := heldProgram(t, Options{Tensors: true}, cmd)
	eventually(t, "a warning", func() bool { return len(tr.warnings) > 0 })
	if text := <-tr.warnings; !strings.Contains(text, "private pools") {
		t.Errorf("warned of: %s", text)
	}
	end()
	cmd = exec.Command(builtAllocator(t))
	tr, end = heldProgram(t, Options{}, cmd)
	if n := len(tr.probedLibraries()); n != 0 {
		t.Errorf("%d libraries are probed", n)
	}
	end()
}
