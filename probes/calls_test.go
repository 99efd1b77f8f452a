package probes

import (
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

// What a program called counts once, however the library makes it happen, and however
// the probes go on.
func TestCallShapes(t *testing.T) {
	for _, attach := range []ebpf.AttachType{attachSession, ebpf.AttachTraceUprobeMulti, ebpf.AttachNone} {
		t.Run(fmt.Sprint("type ", attach), func(t *testing.T) {
			needAttach(t, attach)
			testCallShapes(t, Options{attach: by(attach)})
		})
	}
}

func testCallShapes(t *testing.T, opts Options) {
	p := odd(t)
	tr := openTrace(t, opts)
	tr.target(p.pid())
	for _, c := range []struct {
		shape, api string
		size       uint64
		nested     uint64 // calls that were inside another
		loss       map[string]uint64
	}{
		{shape: "nested", api: "cuMemAllocHost_v2", size: 100, nested: calls},
		{shape: "tail", api: "cuMemHostAlloc", size: 200, nested: calls},
		{shape: "deep", api: "cuMemCreate", size: 300, nested: 5 * calls,
			loss: map[string]uint64{"calls_nested_too_deep": calls}},
		{shape: "same", api: "cuMemAlloc_v2", size: 400},
		{shape: "other", api: "cuMemFree_v2"},
		{shape: "freed", api: "cuMemFreeHost", nested: calls},
		{shape: "module", api: "cuMemAlloc_v2", size: 600},
		{shape: "jumped", api: "cuMemAllocManaged", size: 100 << 20},
	} {
		t.Run(c.shape, func(t *testing.T) {
			before := map[string]uint64{}
			for _, n := range []string{"calls_nested", "calls_nested_too_deep", "calls_without_entry"} {
				before[n] = tr.counter(n)
			}
			p.do(fmt.Sprintf("%s %d", c.shape, calls), c.shape)
			events := tr.drain()
			good := count(events, func(e *event.Event) bool {
				return apiName(e.API) == c.api && e.Size == c.size && e.Result == 0
			})
			if good != calls || len(events) != calls {
				t.Errorf("%d of %d events are as they should be, want %d:%s", good, len(events), calls, format(events))
			}
			if n := tr.counter("calls_nested") - before["calls_nested"]; n != c.nested {
				t.Errorf("%d nested calls, want %d", n, c.nested)
			}
			for _, n := range []string{"calls_nested_too_deep", "calls_without_entry"} {
				if got := tr.counter(n) - before[n]; got != c.loss[n] {
					t.Errorf("%s grew by %d, want %d", n, got, c.loss[n])
				}
			}
		})
	}
}

// A call that the program makes while another one is pending, and that the library does not
// make, counts for itself: of a callback, of a signal's handler, of a fiber.
func TestOwnCallsInsideACall(t *testing.T) {
	for _, attach := range []ebpf.AttachType{attachSession, ebpf.AttachTraceUprobeMulti, ebpf.AttachNone} {
		t.Run(fmt.Sprint("type ", attach), func(t *testing.T) {
			needAttach(t, attach)
			p := odd(t)
			tr := openTrace(t, Options{attach: by(attach)})
			tr.target(p.pid())
			shapes := []string{"callback", "signal", "fiber"}
			for _, shape := range shapes {
				p.do(fmt.Sprintf("%s %d", shape, calls), shape)
				got := map[call]int{}
				for _, e := range tr.drain() {
					got[call{apiName(e.API), int32(e.Size)}]++
				}
				want := map[call]int{{"cuMemAlloc_v2", 701}: calls, {"cuMemAllocManaged", 702}: calls,
					{"cuMemAllocHost_v2", 703}: calls, {"cuMemAllocManaged", 704}: calls}
				if !maps.Equal(got, want) {
					t.Errorf("%s: events %v, want %v", shape, got, want)
				}
			}
			tr.wantLoss(map[string]uint64{"calls_nested": uint64(len(shapes) * calls)})
		})
	}
}

// Of a function that calls itself the outermost call counts, and the others with it.
func TestRecursion(t *testing.T) {
	for _, attach := range []ebpf.AttachType{attachSession, ebpf.AttachTraceUprobeMulti} {
		t.Run(fmt.Sprint("type ", attach), func(t *testing.T) {
			needAttach(t, attach)
			p := odd(t)
			tr := openTrace(t, Options{attach: by(attach)})
			tr.target(p.pid())
			p.do(fmt.Sprint("recursion ", calls), "recursion")
			events := tr.drain()
			if n := count(events, func(e *event.Event) bool { return e.Size == 300 }); n != calls || len(events) != calls {
				t.Errorf("%d of %d events are of the outermost call, want %d:%s", n, len(events), calls, format(events))
			}
			tr.wantLoss(map[string]uint64{"calls_nested": 2 * calls})
		})
	}
}

// A memory function that cuGetProcAddress leads past the probes is warned of.
func TestProcAddress(t *testing.T) {
	p := odd(t)
	tr := openTrace(t, Options{})
	tr.target(p.pid())
	p.do("known 23", "known")
	events := tr.drain()
	tr.compared()
	if len(events) != 0 || len(tr.warnings) != 0 {
		t.Fatalf("%d warnings, events:%s", len(tr.warnings), format(events))
	}
	p.do("hidden 23", "hidden")
	tr.drain()
	eventually(t, "a warning", func() bool { return len(tr.warnings) > 0 })
	if len(tr.warnings) != 1 {
		t.Fatalf("%d warnings, want 1", len(tr.warnings))
	}
	if text := <-tr.warnings; !strings.Contains(text, "cuMemAlloc that is not probed") {
		t.Errorf("warning %q", text)
	}
	// What the stand-in's static runtime asks for is all probed.
	static := start(t, testcuda.WorkloadStripped, testcuda.Options{})
	run(t, static, "dlopen")
	tr.target(static.PID())
	run(t, static, "row cudaMalloc", "row cudaMallocAsync")
	if n := tally(tr.drain())[call{"cuMemAlloc_v2", 0}]; n != calls {
		t.Errorf("%d events from a static runtime, want %d", n, calls)
	}
	tr.compared()
	if asked := stats(t, static).APIs["cuGetProcAddress_v2"].OK; asked == 0 || len(tr.warnings) != 0 {
		t.Errorf("after %d questions, %d warnings", asked, len(tr.warnings))
	}
}

func TestThreads(t *testing.T) {
	const threads, rounds = 16, 211
	p := start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "init")
	tr := traced(t, p, Options{})
	run(t, p, fmt.Sprintf("threads %d { repeat %d cuMemAlloc_v2 512; free all }", threads, rounds))
	per := map[uint32]map[string]int{}
	for _, e := range tr.drain() {
		if per[e.TID] == nil {
			per[e.TID] = map[string]int{}
		}
		per[e.TID][apiName(e.API)]++
	}
	if len(per) != threads {
		t.Errorf("events of %d threads, want %d", len(per), threads)
	}
	for tid, n := range per {
		if n["cuMemAlloc_v2"] != rounds || n["cuMemFree_v2"] != rounds {
			t.Errorf("thread %d: %v, want %d each", tid, n, rounds)
		}
	}
	tr.wantLoss(nil)
}

// withoutStorage makes the kernel give no storage for the states of threads.
func withoutStorage(spec *ebpf.CollectionSpec) {
	for _, program := range spec.Programs {
		for i, ins := range program.Instructions {
			if !ins.IsBuiltinCall() || ins.Constant != int64(asm.FnTaskStorageGet) {
				continue
			}
			for at := i - 1; at >= 0; at-- {
				if flags := &program.Instructions[at]; flags.Dst == asm.R4 && flags.OpCode.ALUOp() == asm.Mov {
					flags.Constant = 0 // of BPF_LOCAL_STORAGE_GET_F_CREATE
					break
				}
			}
		}
	}
}

// Threads to which the kernel gives no storage have a spare state each until they end.
func TestThreadsWithoutStorage(t *testing.T) {
	const threads, times = 16, 12 // three times as many threads as there are spare states
	p := start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "init")
	tr := traced(t, p, Options{change: withoutStorage})
	for range times {
		run(t, p, fmt.Sprintf("threads %d { repeat %d cuMemAlloc_v2 512; free all }", threads, calls))
	}
	n, want := tally(tr.drain()), calls*threads*times
	if n[call{"cuMemAlloc_v2", 0}] != want || n[call{"cuMemFree_v2", 0}] != want {
		t.Errorf("%v, want %d each", n, want)
	}
	tr.wantLoss(nil)
}

// Calls of threads to which no spare state is left are counted.
func TestNoThreadState(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "init")
	tr := traced(t, p, Options{change: func(spec *ebpf.CollectionSpec) {
		withoutStorage(spec)
		spec.Maps["spare_threads"].MaxEntries = 1
	}})
	run(t, p, "row cuMemAlloc_v2 1", "threads 2 cuMemAlloc_v2 512")
	once := tr.counter("calls_no_thread_state") // with what a thread calls first
	run(t, p, fmt.Sprintf("threads 2 { repeat %d cuMemAlloc_v2 512 }", calls), "row cuMemAlloc_v2 1")
	if n := len(tr.drain()); n != 4 {
		t.Errorf("%d events, want those of the main thread, 4", n)
	}
	tr.wantLoss(map[string]uint64{"calls_no_thread_state": 2*once + 2*(calls-1)})
}

// The bytes of a stack travel once, and each event names one that came.
func TestStacksComeOnceAndFirst(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "init")
	tr := traced(t, p, Options{})
	for _, path := range []string{"l", "r", "lr", "rl"} {
		run(t, p, fmt.Sprintf("repeat %d via %s cuMemAlloc_v2", calls, path))
	}
	ids := map[uint64]int{}
	for _, e := range tr.drain() {
		ids[e.Stack]++
		if tr.stacks[e.Stack] == 0 {
			t.Fatalf("stack %#x did not come", e.Stack)
		}
	}
	if len(ids) != 4 || len(tr.stacks) != 4 || tr.repeated != 0 {
		t.Errorf("%d stacks in events, %d came, %d again, want 4, 4, 0", len(ids), len(tr.stacks), tr.repeated)
	}
	for id, n := range ids {
		if n != calls {
			t.Errorf("stack %#x: %d events, want %d", id, n, calls)
		}
	}
}

// With a full ring buffer every event is either received or counted.
func TestRingFull(t *testing.T) {
	const rounds = 2003
	p := start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "init")
	tr := traced(t, p, Options{change: ringOf(uint32(2 * os.Getpagesize()))}) // half of it for one user
	run(t, p, fmt.Sprintf("repeat %d cuMemAlloc_v2", rounds), "free all")
	events := len(tr.drain())
	lost := tr.counter("events_ring_full")
	if uint64(events)+lost != 2*rounds || lost == 0 || events == 0 {
		t.Errorf("%d events and %d counted losses of %d calls", events, lost, 2*rounds)
	}
	// Room again: nothing more is lost, and the stack is known.
	run(t, p, "row cuMemAlloc_v2 11")
	if n := len(tr.drain()); n != 22 || tr.counter("events_ring_full") != lost {
		t.Errorf("after the flood: %d events, %d lost, want 22 and %d", n, tr.counter("events_ring_full"), lost)
	}
}

// A counter counts calls without keeping them.
type counter map[call]uint64

func (c counter) Event(e *event.Event) { c[call{apiName(e.API), e.Result}]++ }
func (c counter) Stack(*Stack)         {}

// At the highest rate that the machine can make, every call is received or
// counted.
func TestHammer(t *testing.T) {
	p := start(t, testcuda.Hammer, testcuda.Options{Args: []string{"-threads", "4", "-seconds", "3", "-wait"}})
	if _, err := p.Expect("ready"); err != nil {
		t.Fatal(err)
	}
	tr := traced(t, p, Options{})
	got := counter{}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := tr.Run(got, nil); err != nil {
			t.Error(err)
		}
	})
	if err := p.Send("go"); err != nil {
		t.Fatal(err)
	}
	lines, code, err := p.Wait()
	if err != nil || code != 0 || len(lines) != 1 {
		t.Fatalf("hammer: %q, exit %d, %v", lines, code, err)
	}
	want, err := testcuda.ParseStats(lines[0])
	if err != nil {
		t.Fatal(err)
	}
	tr.reader.flush()
	wg.Wait()
	var called, received uint64
	for _, api := range []string{"cuMemAlloc_v2", "cuMemFree_v2", "cuMemAllocAsync", "cuMemFreeAsync"} {
		called += want.APIs[api].OK
		received += got[call{api, 0}]
	}
	exit := got[call{"", 0}]
	lost := tr.counter("events_ring_full")
	t.Logf("%d calls, %d received, %d lost", called, received, lost)
	if received+exit+lost != called+1 {
		t.Errorf("%d events, %d exits and %d counted losses of %d calls", received, exit, lost, called)
	}
	if lost == 0 {
		for _, api := range []string{"cuMemAlloc_v2", "cuMemFree_v2", "cuMemAllocAsync", "cuMemFreeAsync"} {
			if got[call{api, 0}] != want.APIs[api].OK {
				t.Errorf("%s: %d events of %d calls", api, got[call{api, 0}], want.APIs[api].OK)
			}
		}
	}
	tr.wantLoss(map[string]uint64{"events_ring_full": lost, "stacks_ring_full": tr.counter("stacks_ring_full")})
}
