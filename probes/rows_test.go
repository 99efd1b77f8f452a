package probes

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

// Every row is called this often: a prime number, which no batching divides.
const calls = 23

// canonical returns, for each symbol of a library, the one that its probe is
// named after: two names may share an address.
func canonical(t *testing.T, level Level, file string) map[string]string {
	t.Helper()
	offsets, err := offsetsOf(file, known)
	if err != nil {
		t.Fatal(err)
	}
	points, _ := choose(level, offsets, lasting)
	names := map[string]string{}
	for symbol, off := range offsets {
		for _, p := range points {
			if p.offset == off {
				names[symbol] = Entries[p.entry].Symbol
			}
		}
	}
	return names
}

// A total is what the calls of one API did.
type total struct {
	ok, failed  uint64
	bytes       uint64 // of calls that succeeded
	failedBytes uint64
}

func entryOf(t *testing.T, symbol string) Entry {
	t.Helper()
	for _, e := range Entries[1:] {
		if e.Symbol == symbol {
			return e
		}
	}
	t.Fatalf("the table has no %s", symbol)
	return Entry{}
}

// sized rows tell how many bytes they bring. Imported memory does not; and
// whoever ends memory knows no size, except of a range.
func sized(e Entry) bool {
	switch e.Op {
	case event.OpHandleCreate:
		return e.Kind != event.KindMulticast
	case event.OpMap, event.OpReserve:
		return true
	case event.OpAlloc:
		switch e.Symbol {
		case "cuMemPoolImportPointer",
			"cuExternalMemoryGetMappedBuffer", "cuExternalMemoryGetMappedMipmappedArray":
			return false
		}
		return true
	}
	return false
}

// traceTotals adds up events as the stand-in's statistics do.
func traceTotals(events []event.Event) map[string]total {
	out := map[string]total{}
	for _, e := range events {
		name := apiName(e.API)
		if name == "" {
			continue
		}
		n := out[name]
		size := uint64(0)
		if sized(Entries[e.API]) {
			size = e.Size
		}
		if e.Result == event.Success {
			n.ok++
			n.bytes += size
		} else {
			n.failed++
			n.failedBytes += size
		}
		out[name] = n
	}
	return out
}

// driverTotals are what the stand-in counted between two moments, of the rows
// that give events, by the names that probes have.
func driverTotals(t *testing.T, names map[string]string, before, after *testcuda.Stats) map[string]total {
	t.Helper()
	out := map[string]total{}
	for api, a := range after.APIs {
		name, b := names[api], before.APIs[api]
		if name == "" || a == b {
			continue
		}
		e := entryOf(t, name)
		if e.class != classEmit || e.Op == opProcAddress {
			continue
		}
		n := total{ok: a.OK - b.OK, failed: a.Failed - b.Failed}
		if sized(e) {
			n.bytes, n.failedBytes = a.Bytes-b.Bytes, a.FailedBytes-b.FailedBytes
		}
		out[name] = n
	}
	return out
}

// wantTotals compares, and leaves the bytes of failed calls out where the
// driver answers them: a pitch, or a size within a structure that it fills in.
func wantTotals(t *testing.T, got, want map[string]total) {
	t.Helper()
	for name := range want {
		g, w := got[name], want[name]
		if e := entryOf(t, name); e.Fix != nil || e.Size.size != 0 {
			g.failedBytes, w.failedBytes = 0, 0
		}
		if g != w {
			t.Errorf("%s: traced %+v, the driver counted %+v", name, g, w)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s: traced %+v, the driver counted none", name, got[name])
		}
	}
}

// offered tells whether the stand-in has a row; TestEveryOtherRow calls the
// others.
func offered(names map[string]string, e Entry) bool { return names[e.Symbol] != "" }

// silent rows give no events of their own: TestContexts and TestProcAddress
// look at what they do.
func silent(e Entry) bool { return e.class != classEmit || e.Op == opProcAddress || !ofLibrary(e) }

// ofLibrary tells whether a row is a function that a library exports, for a program
// to call. TestKernelRows looks at the others.
func ofLibrary(e Entry) bool { return e.Level != Kernel && !e.imported() }

// wanted tells whether a library's symbol would be probed at all.
func wanted(e Entry) bool {
	points, _ := choose(e.Level, map[string]uint64{e.Symbol: 1}, lasting)
	return len(points) == 1
}

func TestEveryDriverRow(t *testing.T) {
	kit := testcuda.Get(t)
	names := canonical(t, Driver, kit.LibCUDA)
	p := start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "init")
	tr := traced(t, p, Options{})
	for _, e := range Entries[1:] {
		if e.Level != Driver || silent(e) || !offered(names, e) {
			continue
		}
		t.Run(e.Symbol, func(t *testing.T) {
			name := names[e.Symbol]
			tr.drain()
			before := stats(t, p)
			run(t, p, fmt.Sprintf("row %s %d 4096", e.Symbol, calls))
			want := driverTotals(t, names, before, stats(t, p))
			got := traceTotals(tr.drain())
			wantTotals(t, got, want)
			n := uint64(calls)
			if strings.HasPrefix(e.Symbol, "cuMemMapArrayAsync") { // maps and unmaps
				n *= 2
			}
			if e.Symbol == "cuMemRelease" { // the row ends mappings and what was under them
				n = want[name].ok
			}
			if got[name].ok != n || got[name].failed != 0 {
				t.Errorf("%d events, %d of failed calls, want %d", got[name].ok, got[name].failed, n)
			}
			if sized(e) && got[name].bytes < calls*4096 {
				t.Errorf("%d bytes are fewer than were asked for", got[name].bytes)
			}
		})
	}
	tr.wantLoss(nil)
	if n := tr.counter("calls_nested"); n != 0 {
		t.Errorf("%d calls came from inside another", n)
	}
}

// Each call of every row that fails is an event with its result, which the
// ledger counts apart.
func TestEveryDriverRowFails(t *testing.T) {
	const code = 2
	kit := testcuda.Get(t)
	names := canonical(t, Driver, kit.LibCUDA)
	p := start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "init")
	tr := traced(t, p, Options{})
	first := map[string]string{} // what ends memory -> what brings it
	for _, line := range run(t, p, "rows") {
		api, undo, _ := strings.Cut(line, " ")
		if first[undo] == "" {
			first[undo] = api
		}
	}
	twins := map[string]string{
		"cuCtxDestroy": "cuCtxCreate_v2", "cuDevicePrimaryCtxRelease": "cuDevicePrimaryCtxRetain",
		"cuMemFreeAsync_ptsz": "cuMemAllocAsync", "cuMemMapArrayAsync": "", "cuMemMapArrayAsync_ptsz": "",
	}
	for _, e := range Entries[1:] {
		if e.Level != Driver || silent(e) || !offered(names, e) {
			continue
		}
		t.Run(e.Symbol, func(t *testing.T) {
			begin, ends := first[e.Symbol]
			if twin, ok := twins[e.Symbol]; ok {
				begin, ends = twin, twin != ""
			}
			injected := statsName(e.Symbol)
			tr.drain()
			if ends {
				run(t, p, fmt.Sprintf("repeat %d %s", calls, begin))
			}
			before := stats(t, p)
			run(t, p, fmt.Sprintf("fail %s 0 %d", injected, code))
			if n := tally(tr.drain()); n[call{names[e.Symbol], code}] != 0 {
				t.Fatal("it failed before it was asked to")
			}
			run(t, p, fmt.Sprintf("repeat %d expect %d %s", calls, code, e.Symbol), fmt.Sprintf("fail %s 0 0", injected))
			events := tr.drain()
			wantTotals(t, traceTotals(events), driverTotals(t, names, before, stats(t, p)))
			if n := tally(events)[call{names[e.Symbol], code}]; n != calls {
				t.Errorf("%d events of failed calls, want %d", n, calls)
			}
			if ends { // and what did not end is there to be ended
				run(t, p, "free all")
			}
		})
	}
	tr.wantLoss(nil)
}

// The size of a pitched call that failed is what was asked for.
func TestFailedSizes(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "init")
	tr := traced(t, p, Options{})
	for _, api := range []string{"cuMemAllocPitch", "cuMemAllocPitch_v2"} {
		run(t, p, fmt.Sprintf("fail %s 1 2", api), fmt.Sprintf("expect 2 %s 5000", api)) // of three rows
		if events := tr.drain(); len(events) != 1 || events[0].Size != 15000 || events[0].Addr != 0 {
			t.Errorf("%s:%s", api, format(events))
		}
	}
	tr.wantLoss(nil)
}

// statsName is the name by which the stand-in knows an alias.
func statsName(symbol string) string {
	switch symbol {
	case "cuIpcOpenMemHandle", "cuDevicePrimaryCtxReset":
		return symbol + "_v2"
	}
	return symbol
}

// driverBytes are what the driver handed out between two moments, and in how many
// calls.
func driverBytes(before, after *testcuda.Stats) (bytes uint64, oks uint64) {
	for api, a := range after.APIs {
		b := before.APIs[api]
		switch {
		case strings.HasPrefix(api, "cuMemAlloc"), api == "cuMemHostAlloc", api == "cuMemHostRegister_v2",
			strings.HasPrefix(api, "cuArray") && api != "cuArrayDestroy", api == "cuMipmappedArrayCreate":
			bytes += a.Bytes - b.Bytes
			oks += a.OK - b.OK
		}
	}
	return bytes, oks
}

// In the modes runtime and both, from a shared and from a static libcudart,
// every runtime row counts once, with the driver's bytes.
func TestEveryRuntimeRow(t *testing.T) {
	for _, program := range []testcuda.Program{testcuda.Workload, testcuda.WorkloadStatic} {
		for _, api := range []API{APIRuntime, APIBoth} {
			t.Run(fmt.Sprintf("%s/%s", program, api), func(t *testing.T) {
				p := start(t, program, testcuda.Options{})
				run(t, p, "row cudaMalloc 1", "row cudaMallocAsync 1") // what comes once at the start
				tr := traced(t, p, Options{API: api})
				for _, e := range Entries[1:] {
					if e.Level == Runtime && e.class == classEmit && e.Symbol != "cudaDeviceReset" {
						t.Run(e.Symbol, func(t *testing.T) { runtimeRow(t, tr, p, e) })
					}
				}
				tr.drain()
				run(t, p, "cudaMalloc 1000", "cudaDeviceReset", "row cudaMalloc 1", "cudaDeviceSynchronize")
				resets := count(tr.drain(), func(e *event.Event) bool { return e.Op == event.OpPrimaryReset })
				if resets != 1 {
					t.Errorf("cudaDeviceReset: %d events, want 1", resets)
				}
				tr.wantLoss(nil)
			})
		}
	}
}

func runtimeRow(t *testing.T, tr *trace, p *testcuda.Process, e Entry) {
	tr.drain()
	before := stats(t, p)
	run(t, p, fmt.Sprintf("row %s %d 4096", e.Symbol, calls))
	wantBytes, wantCalls := driverBytes(before, stats(t, p))
	if wantCalls != calls {
		t.Fatalf("the driver counted %d calls, want %d", wantCalls, calls)
	}
	events := tr.drain()
	var bytes uint64
	brought, ended, named := 0, 0, 0
	for _, ev := range events {
		if ev.Result != event.Success {
			t.Errorf("a failed call:%s", format([]event.Event{ev}))
		}
		level, name := Entries[ev.API].Level, apiName(ev.API)
		if tr.opts.API == APIBoth {
			if level != Driver {
				t.Errorf("an event of %s", name)
			}
			name = apiName(ev.Outer)
		} else if level != Runtime || ev.Outer != 0 {
			t.Errorf("an event of %s in %q", name, apiName(ev.Outer))
		}
		if name == e.Symbol {
			named++
		}
		switch ev.Op {
		case event.OpAlloc:
			brought++
			bytes += ev.Size
		case event.OpFree:
			ended++
		}
	}
	if brought != calls || ended != calls || named != calls || len(events) != 2*calls {
		t.Errorf("%d allocations, %d frees, %d of %s, want %d each:%s", brought, ended, named, e.Symbol, calls, format(events))
	}
	if bytes != wantBytes {
		t.Errorf("%d bytes, the driver counted %d", bytes, wantBytes)
	}
}

// A row without a test is a gap that nobody sees.
func TestEverySymbolHasATest(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	tested := map[string]bool{}
	for _, line := range run(t, p, "rows") {
		api, undo, _ := strings.Cut(line, " ")
		tested[api], tested[undo] = true, true
	}
	// Ended by "row" through the twin of their undo; TestProcAddress; TestKernel.
	for _, name := range []string{"cuInit", "cuCtxDestroy", "cuDevicePrimaryCtxRelease", "cuGetProcAddress", "cuGetProcAddress_v2"} {
		tested[name] = true
	}
	for _, name := range torchSymbols { // TestTorchOutOfMemory, TestTensors, TestPrivatePools
		tested[name] = true
	}
	for _, e := range lacking(t) { // TestEveryOtherRow
		tested[e.Symbol] = true
	}
	for _, e := range Entries[1:] {
		if !tested[e.Symbol] && ofLibrary(e) {
			t.Errorf("no stand-in workload calls %s", e.Symbol)
		}
	}
	seen := map[string]bool{}
	for _, e := range Entries[1:] {
		if seen[e.Symbol] && e.Level != Kernel {
			t.Errorf("%s is in two rows", e.Symbol)
		}
		seen[e.Symbol] = true
	}
}

// Two names of one address have one probe, and none is called missing.
func TestAliasesAreProbedOnce(t *testing.T) {
	kit := testcuda.Get(t)
	offsets, err := offsetsOf(kit.LibCUDA, func(name []byte) bool {
		return slices.ContainsFunc(Entries[1:], func(e Entry) bool { return e.Symbol == string(name) && wanted(e) })
	})
	if err != nil {
		t.Fatal(err)
	}
	points, missing := choose(Driver, offsets, lasting)
	for _, symbol := range missing {
		if !slices.ContainsFunc(lacking(t), func(e Entry) bool { return e.Symbol == symbol }) {
			t.Errorf("missing %s", symbol)
		}
	}
	distinct := map[uint64]bool{}
	for _, off := range offsets {
		distinct[off] = true
	}
	if len(points) != len(distinct) || len(offsets) != len(points)+2 {
		t.Errorf("%d points for %d addresses of %d symbols, want one each and two aliases", len(points), len(distinct), len(offsets))
	}
}

func TestOldDriver(t *testing.T) {
	kit := testcuda.Get(t)
	p := start(t, testcuda.Workload, testcuda.Options{Libs: testcuda.LibsOld})
	run(t, p, "init")
	tr := traced(t, p, Options{})
	offsets, err := offsetsOf(kit.LibCUDAOld, known)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, e := range Entries[1:] {
		if _, ok := offsets[e.Symbol]; !ok && e.Level == Driver && wanted(e) {
			want = append(want, e.Symbol)
		}
	}
	missing := tr.missing()
	if got := missing[kit.LibCUDAOld]; len(missing) != 1 || !slices.Equal(got, want) || !slices.Contains(got, "cuMemCreate") {
		t.Errorf("missing %q, want %q", missing, want)
	}
	run(t, p, "row cuMemAlloc_v2", "row cuArrayCreate_v2")
	n := tally(tr.drain())
	for _, api := range []string{"cuMemAlloc_v2", "cuMemFree_v2", "cuArrayCreate_v2", "cuArrayDestroy"} {
		if n[call{api, 0}] != calls {
			t.Errorf("%s: %d events, want %d", api, n[call{api, 0}], calls)
		}
	}
	tr.wantLoss(nil)
}

// Frees of a null pointer mean nothing.
func TestFreeOfNull(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "init", "raw cudaFree 0") // which sets up the runtime
	tr := traced(t, p, Options{})
	run(t, p, "row cuMemFree_v2(0)", "raw cuMemFreeHost 0", "raw cudaFree 0")
	if events := tr.drain(); len(events) != 0 {
		t.Errorf("events:%s", format(events))
	}
	if n := stats(t, p).APIs["cuMemFree_v2"].OK; n < calls {
		t.Fatalf("%d calls, want at least %d", n, calls)
	}
}

// Every field of an event, of one call of each shape.
func TestFields(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "device 1")
	tr := traced(t, p, Options{})
	one := func(command string) event.Event {
		t.Helper()
		tr.drain()
		run(t, p, command)
		events := tr.drain()
		if len(events) == 0 {
			t.Fatalf("%s gave no event", command)
		}
		e := events[len(events)-1]
		if e.Proc.PID != uint32(p.PID()) || e.TID != uint32(p.PID()) || e.Proc.Start == 0 || e.Time == 0 {
			t.Errorf("%s: %+v", command, e)
		}
		if wants := Entries[e.API].flags&flagStack != 0; wants != (e.Stack != 0) || wants && tr.stacks[e.Stack] < 3 {
			t.Errorf("%s: stack %#x of %d frames", command, e.Stack, tr.stacks[e.Stack])
		}
		return e
	}
	newest := func() testcuda.Object {
		t.Helper()
		o, err := p.Objects()
		if err != nil || len(o) == 0 {
			t.Fatalf("objects: %v, %v", o, err)
		}
		return o[0]
	}
	run(t, p, "init") // "device 1" made its context current before the trace
	alloc := one("cuMemAlloc_v2 5000")
	if alloc.Addr != newest().Addr || alloc.Size != 5000 || alloc.Kind != event.KindDevice || alloc.Ctx == 0 {
		t.Errorf("cuMemAlloc_v2: %+v", alloc)
	}
	free := one("cuMemFree_v2")
	if free.Addr != alloc.Addr || free.Op != event.OpFree || free.Time <= alloc.Time || free.Proc != alloc.Proc {
		t.Errorf("cuMemFree_v2: %+v after %+v", free, alloc)
	}
	if e := one("cuMemCreate 2m"); e.Handle != newest().Addr || e.Size != 2<<20 || e.Device != 1 || e.Kind != event.KindVMM {
		t.Errorf("cuMemCreate: %+v", e)
	}
	if e := one("cuMulticastCreate 2m"); e.Handle != newest().Addr || e.Size != 0 || e.Op != event.OpHandleCreate || e.Kind != event.KindMulticast {
		t.Errorf("cuMulticastCreate: %+v", e)
	}
	run(t, p, "device 0")
	if e := one("cuMemCreate 2m"); e.Device != 0 {
		t.Errorf("cuMemCreate on device 0: %+v", e)
	}
	run(t, p, "device 1")
	if e := one("cuMemMap 2m"); e.Op != event.OpMap || e.Addr != newest().Addr || e.Handle != newest().Extra || e.Size != 2<<20 {
		t.Errorf("cuMemMap: %+v", e)
	}
	if e := one("cuMemPoolCreate"); e.Handle != newest().Addr || e.Device != 1 {
		t.Errorf("cuMemPoolCreate: %+v", e)
	}
	if e := one("cuMemAllocFromPoolAsync 512"); e.Handle == 0 || e.Addr != newest().Addr || e.Kind != event.KindAsync {
		t.Errorf("cuMemAllocFromPoolAsync: %+v", e)
	}
	if e := one("cuMemHostAlloc 512"); e.Device != event.NoDevice || e.Kind != event.KindHost {
		t.Errorf("cuMemHostAlloc: %+v", e)
	}
	if e := one("cuCtxCreate_v2"); e.Op != event.OpContextCreate || e.Ctx != newest().Addr || e.Device != 1 {
		t.Errorf("cuCtxCreate_v2: %+v", e)
	}
	if e := one("cuGraphAddMemAllocNode 640"); e.Size != 640 || e.Addr != newest().Addr || e.Device != 1 || e.Kind != event.KindGraph {
		t.Errorf("cuGraphAddMemAllocNode: %+v", e)
	}
	if e := one("cuMemMapArrayAsync 64"); e.Op != event.OpMapArray || e.Addr != newest().Addr || e.Handle != newest().Extra {
		t.Errorf("cuMemMapArrayAsync: %+v", e)
	}
	tr.wantLoss(nil)
}
