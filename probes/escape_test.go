package probes

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/physical"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

// taken applies what a trace saw of the kernel driver's calls, and returns what a
// process has of each GPU, by the driver's number of it.
func taken(l *physical.Ledger, proc event.Process, events []event.Event) map[uint32]int64 {
	for i := range events {
		if e := &events[i]; e.Op >= event.OpClient {
			l.Apply(e, apiName(e.Outer))
		}
	}
	held := map[uint32]int64{}
	for i, g := range l.GPUs(proc) {
		if b := l.BytesByGPU(proc)[i]; b != 0 {
			held[g.ID] += b
		}
	}
	return held
}

// What a program was seen to take from the kernel driver is what the driver says
// that it gave, at every step.
func TestKernel(t *testing.T) {
	for _, libs := range []testcuda.Libs{testcuda.LibsDefault, testcuda.LibsNoFP} {
		for _, api := range []API{APIDriver, APIBoth} {
			t.Run(fmt.Sprintf("%v/%s", libs, api), func(t *testing.T) { kernelSteps(t, libs, api) })
		}
	}
}

func kernelSteps(t *testing.T, libs testcuda.Libs, api API) {
	p := start(t, testcuda.Workload, testcuda.Options{Libs: libs})
	tr := traced(t, p, Options{Kernel: true, API: api})
	l := physical.New(ledger.Options{})
	var proc event.Process
	for _, commands := range []string{
		"raw cuInit 0", "init", "repeat 3 cuMemAlloc_v2 1k", "cuMemAlloc_v2 100m", "repeat 10 cuMemAlloc_v2 300k",
		"repeat 10 cuMemFree_v2", "repeat 4 cuStreamCreate", "cuCtxCreate_v4; cuMemAlloc_v2 5m", "cuCtxDestroy_v2", "cuCtxSetCurrent",
		"cuModuleLoadData", "cuLaunchKernel 16384", "cuModuleUnload", "cuMemAllocAsync 5m", "cuMemFreeAsync", "raw cuCtxSynchronize",
		"cuMemCreate 20m", "cuMemRelease", "cuGraphInstantiateWithFlags", "cuGraphExecDestroy", "device 1", "cuMemAlloc_v2 4m",
		"raw cuDevicePrimaryCtxReset_v2 1", "raw cuDevicePrimaryCtxReset_v2 0",
	} {
		run(t, p, commands)
		events := tr.drain()
		if len(events) > 0 {
			proc = events[0].Proc
		}
		got := taken(l, proc, events)
		var have, want []int64
		for _, b := range got {
			have = append(have, b)
		}
		for _, b := range stats(t, p).Physical {
			if b != 0 {
				want = append(want, b)
			}
		}
		slices.Sort(have)
		slices.Sort(want)
		if !slices.Equal(have, want) {
			t.Errorf("after %q: %d bytes on the GPUs, the driver says %d", commands, have, want)
		}
	}
	tr.wantLoss(nil)
}

// A call of the kernel driver names the function that it was made in, whether that
// allocates or not, and takes a stack unless the function's own event has it.
func TestKernelCauses(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	tr := traced(t, p, Options{Kernel: true})
	for _, c := range []struct {
		command, outer string
		stack          bool
	}{
		{"init", "cuDevicePrimaryCtxRetain", true},
		{"cuMemAlloc_v2 4m", "cuMemAlloc_v2", false},
		{"cuMemCreate 4m", "cuMemCreate", false},
		{"cuMemAllocAsync 4m", "cuMemAllocAsync", false},
		{"cuStreamCreate", "cuStreamCreate", true},
		{"cuModuleLoadData", "cuModuleLoadData", true},
		{"cuLaunchKernel 16384", "", true},
		{"cuGraphInstantiateWithFlags", "cuGraphInstantiateWithFlags", true},
	} {
		run(t, p, c.command)
		n := 0
		for _, e := range tr.drain() {
			if e.Op != event.OpObjectMemory || e.Kind != event.KindDriver {
				continue
			}
			n++
			if apiName(e.Outer) != c.outer || (e.Stack != 0) != c.stack || e.Stack != 0 && tr.stacks[e.Stack] < 2 {
				t.Errorf("%s: memory taken in %q, stack of %d frames", c.command, apiName(e.Outer), tr.stacks[e.Stack])
			}
		}
		if n == 0 {
			t.Errorf("%s took no memory", c.command)
		}
	}
}

// A row whose functions' allocations lie in what is taken inside them is so for all
// of them, and what is taken inside any other function has a stack of its own.
func TestBacked(t *testing.T) {
	for _, e := range Entries[1:] {
		c := physical.Cause(e.Symbol)
		want := e.Level == Driver && e.flags&flagAllocates != 0 && (c == event.KindBacking || c == event.KindPool)
		if got := e.flags&flagBacked != 0; got != want {
			t.Errorf("%s: backed %t, what is taken inside is %s", e.Symbol, got, c)
		}
	}
}

// Each of the kernel driver's calls is read as what it is, also in the short and the
// wrapped form.
func TestKernelRows(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	tr := traced(t, p, Options{Kernel: true})
	run(t, p, "raw cuInit 0")
	var client, device uint64
	for _, e := range tr.drain() {
		switch e.Op {
		case event.OpClient:
			client = e.Handle & 0xffffffff
		case event.OpObjectDevice:
			if e.Addr == 0 {
				device = e.Handle
			}
		}
	}
	if client == 0 || device>>32 != client {
		t.Fatalf("client %#x, device %#x", client, device)
	}
	own := func(object uint64) uint64 { return client<<32 | object }
	memory := "words m client device0 %#x %#x &params 0:64 128 0 -1; ioctl 0x2b 48 m"
	const file = math.MaxUint64 // some place in a file
	exported := map[uint64]bool{}
	run(t, p, "words params 0 0 0x1c101 0 0 0 0x11800000 0x100005 0 0 0 0 0:64 0:64 8192:64 0x1000:64 0:64", "words one 1 0:64 0:64")
	for _, c := range []struct {
		command string
		want    event.Event
	}{
		{fmt.Sprintf(memory, 0x51, 0x40), event.Event{Op: event.OpObjectMemory, Kind: event.KindDriver, Handle: own(0x51), Part: device, Size: 8192}},
		{fmt.Sprintf(memory, 0x52, 0x3e), event.Event{Op: event.OpObjectMemory, Kind: event.KindSystem, Handle: own(0x52), Part: device, Size: 8192}},
		{"words s client device0 0x53 0x40 &params 128 -1; ioctl 0x2b 32 s",
			event.Event{Op: event.OpObjectMemory, Kind: event.KindDriver, Handle: own(0x53), Part: device, Size: 8192}},
		{"words w 0x2b 48 &m; words m client device0 0x54 0x40 &params 0:64 128 0 -1; ioctl 211 16 w",
			event.Event{Op: event.OpObjectMemory, Kind: event.KindDriver, Handle: own(0x54), Part: device, Size: 8192}},
		{"words d client device0 0x55 client 0x51 0 -1; ioctl 0x34 28 d",
			event.Event{Op: event.OpObjectShare, Kind: event.KindDriver, Handle: own(0x55), Part: device, Addr: own(0x51)}},
		{"words x 0 device0 to=19 0x51 to=531 1; words k client client 0x3d0b 0 &x 2128 -1; ioctl 0x2a 32 k",
			event.Event{Op: event.OpObjectExport, Handle: file, Addr: own(0x51), Size: 1}},
		{"words y 0 device0 0x57 to=162 1; words k client client 0x3d0c 0 &y 652 -1; ioctl 0x2a 32 k",
			event.Event{Op: event.OpObjectImport, Kind: event.KindDriver, Handle: own(0x57), Part: device, Addr: file, Size: 1}},
		{"words x 1 device0 device0 0x52 1 0; words k client client 0x3d05 0 &x 24 -1; ioctl 0x2a 32 k",
			event.Event{Op: event.OpObjectExport, Handle: file, Addr: own(0x52)}},
		{"words y 1 1 device0 device0 0x58; words k client client 0x3d06 0 &y 20 -1; ioctl 0x2a 32 k",
			event.Event{Op: event.OpObjectImport, Kind: event.KindDriver, Handle: own(0x58), Part: device, Addr: file}},
		{"words f client device0 0x51 -1; ioctl 0x29 16 f", event.Event{Op: event.OpObjectFree, Handle: own(0x51)}},
		{"words h client device0 2 0 0 -1 0:64 0:64 0 0 0 0 0 0 0 0 0 0 0 0 2097152:64; ioctl 0x4a 184 h",
			event.Event{Op: event.OpObjectMemory, Kind: event.KindDriver, Part: device, Size: 2 << 20}},
		{"words c client client 0x56 0x80 &one 0:64 56 0 -1; ioctl 0x2b 48 c",
			event.Event{Op: event.OpObjectDevice, Handle: own(0x56), Part: own(client), Addr: 1}},
	} {
		tr.drain()
		run(t, p, c.command)
		events := tr.drain()
		if len(events) != 1 {
			t.Errorf("%s: %d events%s", c.command, len(events), format(events))
			continue
		}
		g := events[0]
		if c.want.Handle == 0 {
			g.Handle = 0
		}
		// One's number is the other's.
		switch {
		case c.want.Handle == file:
			c.want.Handle, exported[g.Handle] = g.Handle, true
		case c.want.Addr == file && exported[g.Addr]:
			c.want.Addr = g.Addr
		}
		if got := (event.Event{Op: g.Op, Kind: g.Kind, Handle: g.Handle, Part: g.Part, Addr: g.Addr, Size: g.Size, Result: g.Result}); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.command, got, c.want)
		}
	}
	tr.wantLoss(nil)
}

// Broken and hostile parameters bring nothing but failed calls, and values that
// could not be read are counted.
func TestKernelHostile(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	tr := traced(t, p, Options{Kernel: true})
	run(t, p, "raw cuInit 0", "words params 0 0 0 0 0 0 0 0 0 0 0 0 0:64 0:64 0x8000000000000000:64 0:64 0:64")
	tr.drain()
	run(t, p, "expect 14 ioctl 0x2b 48 0", "expect 14 ioctl 0x2b 48 4096", "expect 14 ioctl 211 16 0", "expect 22 ioctl 0x99 48 params",
		"words a client device0 0 0x40 0:64 0:64 128 0 -1; ioctl 0x2b 48 a", "words b client device0 0 0x40 4096:64 0:64 128 0 -1; ioctl 0x2b 48 b",
		"words c client device0 0 0x40 &params 0:64 128 0 -1; ioctl 0x2b 48 c", "words d client 0x5cffffff 0 0x40 &params 0:64 128 0 -1; ioctl 0x2b 48 d",
		"words e client device0 0 0x7777 &params 0:64 128 0 -1; ioctl 0x2b 48 e")
	failed := 0
	for _, e := range tr.drain() {
		if e.Result == event.Success {
			t.Errorf("a call that failed succeeded: %+v", e)
		}
		if e.Size > 1<<63-1 {
			t.Errorf("size %#x", e.Size)
		}
		failed++
	}
	if failed != 4 {
		t.Errorf("%d failed calls, want those of a, b, c and d", failed)
	}
	if n := tr.counter("arguments_unreadable"); n != 5 {
		t.Errorf("%d calls with values that could not be read, want a, b and the three without parameters", n)
	}
}

// Without the layer no probe is on libcuda's way to the C library.
func TestKernelOff(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	tr := traced(t, p, Options{})
	run(t, p, "init", "cuMemAlloc_v2 4m")
	if n := count(tr.drain(), func(e *event.Event) bool { return e.Op >= event.OpClient }); n != 0 {
		t.Errorf("%d calls of the kernel driver", n)
	}
}
