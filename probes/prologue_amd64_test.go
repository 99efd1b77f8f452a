package probes

import (
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// Wherever in a function its probe lies, each call is seen once, with its
// arguments and its result.
func TestProbesBehindTheStart(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "libcuda.so.1")
	compile(t, file, "starts.c", "-fPIC", "-shared", "-fvisibility=default", "-Wl,-Bsymbolic")
	compile(t, filepath.Join(dir, "starts"), "startsmain.c", file, "-Wl,-rpath,$ORIGIN")
	p := spawn(t, exec.Command(filepath.Join(dir, "starts")), "up")

	offsets, err := offsetsOf(file, known)
	if err != nil {
		t.Fatal(err)
	}
	points, _ := choose(Driver, offsets, lasting)
	lib := openLibrary(t, file)
	e, err := lib.elf()
	if err != nil {
		t.Fatal(err)
	}
	behind := map[string]uint64{}
	for _, p := range locate(e, Driver, points) {
		behind[Entries[p.entry].Symbol] = p.at - p.offset
	}
	want := map[string]uint64{"cuMemAlloc_v2": 7, "cuMemFree_v2": 12, "cuMemAllocHost_v2": 0, "cuMemFreeHost": 0, "cuMemAllocManaged": 0}
	if !maps.Equal(behind, want) {
		t.Errorf("probes behind the functions' starts: %v, want %v", behind, want)
	}

	tr := openTrace(t, Options{})
	tr.target(p.pid())
	p.do(fmt.Sprint(calls), "wrong 0")
	events := tr.drain()
	n := tally(events)
	if want := map[call]int{
		{"cuMemAlloc_v2", 0}: calls, {"cuMemFree_v2", 0}: calls, {"cuMemFree_v2", 1}: calls, {"cuMemAllocHost_v2", 0}: calls,
		{"cuMemFreeHost", 0}: calls, {"cuMemAllocManaged", 0}: calls,
	}; !maps.Equal(n, want) {
		t.Errorf("calls %v, want %v", n, want)
	}
	var last uint64
	for _, e := range events {
		switch {
		case e.Op == event.OpAlloc:
			size := map[string]uint64{"cuMemAlloc_v2": 100, "cuMemAllocHost_v2": 200, "cuMemAllocManaged": 300}[apiName(e.API)]
			if e.Size != size || e.Addr <= last || e.Stack == 0 || tr.stacks[e.Stack] < 2 {
				t.Fatalf("%s of %d bytes at %#x, stack of %d frames", apiName(e.API), e.Size, e.Addr, tr.stacks[e.Stack])
			}
			last = e.Addr
		case e.Result == 0 && e.Addr != last:
			t.Fatalf("%s of %#x, want %#x", apiName(e.API), e.Addr, last)
		}
	}
	tr.wantLoss(nil)
}
