package export

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

// failure is a PyTorch process that asked for too much beside another one.
func failure() *snapshot.OutOfMemory {
	s := snapshottest.Training()
	return &snapshot.OutOfMemory{
		Time: snapshottest.Start, PID: 4711, Process: "python3", Thread: 4712, Requested: 4 << 30, API: "cuMemAlloc_v2", Calls: 1, GPU: "0",
		Stack:     s.Samples[0].Stack,
		Tensor:    6 << 30,
		Framework: &snapshot.FrameworkMemory{Name: "PyTorch", Allocated: 5 << 30, Reserved: 7 << 30},
		GPUs: []snapshot.GPUMemory{{GPU: "0", Name: "NVIDIA H200", Total: 141 << 30, Used: 140 << 30, Free: 1 << 30, Processes: []snapshot.GPUProcess{
			{PID: 4711, Name: "python3", Bytes: 9 << 30, Known: true}, {PID: 10, Name: "serve\x1b"},
		}}},
		Snapshot: s,
	}
}

// trains is a PyTorch process of which tensors are known, that asked for one that no
// free block has room for.
func trains() *snapshot.OutOfMemory {
	s := snapshottest.Tensors()
	o := failure()
	o.PID, o.Requested, o.Tensor, o.Calls, o.GaveBack = 30, 20<<20, 8<<20, 2, 5<<20
	o.Stack, o.Snapshot, o.Allocator = s.Samples[2].Stack, s, &snapshot.Allocator{PID: 30, Process: "python3", GPU: "0", Segments: slices.Clone(s.Allocators[0].Segments)}
	larger := &o.Allocator.Segments[2]
	larger.Count, larger.Reserved, larger.Cached, larger.FreeBlocks, larger.LargestFree, larger.Releasable = 1, larger.Allocated, 0, 0, 0, 0
	o.Framework = &snapshot.FrameworkMemory{Name: "PyTorch", Allocated: 266 << 20, Reserved: 282 << 20}
	return o
}

// TestAdvice: what the page says of fragmentation, and the one change that it names, are
// what the figures support.
func TestAdvice(t *testing.T) {
	const mib = 1 << 20
	other := func(bytes int64) func(*snapshot.OutOfMemory) {
		return func(o *snapshot.OutOfMemory) {
			o.Tensor, o.GPUs[0].Free = 20*mib, mib
			o.Snapshot.Allocators = append(o.Snapshot.Allocators, snapshot.Allocator{PID: 40, Process: "serve", GPU: "0", Segments: []snapshot.Segments{{Releasable: bytes, Cached: bytes}}})
		}
	}
	driver := func(o *snapshot.OutOfMemory) { // NCCL's call, say
		o.Framework, o.Tensor, o.Requested, o.Calls, o.Stack = nil, 0, 4*mib, 1, nil
		o.Allocator.Segments[2].Releasable = 5 * mib
	}
	// private puts the segments for larger tensors in a pool, and has the pool that is
	// told of, if the tensor is so large, ask for one.
	private := func(pool string, tensor int64) func(*snapshot.OutOfMemory) {
		return func(o *snapshot.OutOfMemory) {
			o.Allocator.Segments[1].Private = "1.0"
			if pool == unknownPool {
				o.Allocator.Segments[1].Private = pool
			}
			if tensor > 0 {
				o.Tensor, o.Private = tensor, pool
			}
		}
	}
	for name, c := range map[string]struct {
		change     func(*snapshot.OutOfMemory)
		fits, help string // in what is said; "" if nothing is
	}{
		"fragmented":             {func(*snapshot.OutOfMemory) {}, "The 15.0 MiB that were cached for such tensors would have been enough, but none of the", "expandable_segments:True"},
		"expandable":             {func(o *snapshot.OutOfMemory) { o.Allocator.Segments[2].Expandable = true }, "would have been enough, but none of the", ""},
		"given back anyway":      {func(o *snapshot.OutOfMemory) { o.Allocator.Segments[1].Releasable = 8 * mib }, "would have been enough, but none of the", ""},
		"too little":             {func(o *snapshot.OutOfMemory) { o.Tensor = 16 * mib }, "would not have fitted into the 15.0 MiB", ""},
		"of the small pool":      {func(o *snapshot.OutOfMemory) { o.Tensor = 768 << 10 }, "The 1.00 MiB that were cached for such tensors would have been enough, but none of the", "expandable_segments:True"},
		"another stream's":       {func(o *snapshot.OutOfMemory) { o.Tensor = 6 * mib }, "did not use", ""},
		"tensors unseen":         {func(o *snapshot.OutOfMemory) { o.Allocator.Unseen = 1 }, "", ""},
		"no tensors":             {func(o *snapshot.OutOfMemory) { o.Allocator = nil }, "", ""},
		"more than the GPU":      {func(o *snapshot.OutOfMemory) { o.Tensor = 400 << 30 }, "would not", "ask for less"},
		"another process":        {other(19 * mib), "would not", "torch.cuda.empty_cache() in serve (40)"},
		"another one's too few":  {other(18 * mib), "would not", ""},
		"a driver call":          {driver, "", "torch.cuda.empty_cache() before this call"},
		"a driver call, too few": {func(o *snapshot.OutOfMemory) { driver(o); o.Requested = 6 * mib }, "", ""},
		"of the allocator's own": {func(o *snapshot.OutOfMemory) { driver(o); o.Stack = o.Snapshot.Samples[2].Stack }, "", ""},
		// What a private pool has cached is for its own requests alone.
		"in a graph's pool":         {private("1.0", 0), "would not have fitted into the 0 B", ""},
		"of a graph's pool":         {private("1.0", 8*mib), "The 15.0 MiB that were cached for such tensors in private pool 1.0 would have been enough, but none of the", ""},
		"of another pool":           {private("0.1", 8*mib), "would not", ""},
		"of a pool, too much":       {private("1.0", 16*mib), "would not have fitted into the 15.0 MiB that were cached for such tensors in private pool 1.0", ""},
		"perhaps in a pool":         {private(unknownPool, 0), "", ""},
		"perhaps in a pool, small":  {func(o *snapshot.OutOfMemory) { private(unknownPool, 0)(o); o.Tensor = 768 << 10 }, "The 1.00 MiB that were cached for such tensors would have been enough, but none of the", "expandable_segments:True"},
		"perhaps of a pool":         {func(o *snapshot.OutOfMemory) { o.Private = unknownPool }, "", ""},
		"an expandable pool beside": {func(o *snapshot.OutOfMemory) { s := &o.Allocator.Segments[2]; s.Expandable, s.Private = true, "1.0" }, "would have been enough, but none of the", "expandable_segments:True"},
		"a driver call, in a pool": {func(o *snapshot.OutOfMemory) {
			driver(o)
			s := &o.Allocator.Segments[2]
			s.Private, s.Kept, s.Releasable = "1.0", s.Releasable, 0
		}, "", ""},
		"one line": {func(o *snapshot.OutOfMemory) {
			o.Tensor, o.Snapshot.Samples[0].InuseBytes = 100*mib, 300*mib
		}, "would not", "less at <module> train.py:31: this line holds 55.7%"},
	} {
		o := trains()
		c.change(o)
		for what, of := range map[string][2]string{"fits": {fits(o), c.fits}, "help": {advice(o), c.help}} {
			if got, want := of[0], of[1]; !strings.Contains(got, want) || (got == "") != (want == "") {
				t.Errorf("%s, %s: %q, want %q", name, what, got, want)
			}
		}
	}
}

func TestOutOfMemory(t *testing.T) {
	recovered := failure()
	recovered.Recovered, recovered.Tensor, recovered.Framework, recovered.Stack = true, 0, nil, snapshottest.Hostile().Samples[0].Stack
	recovered.GPUs, recovered.Snapshot = nil, snapshottest.Hostile()
	// Every byte of the process is explained, on two GPUs, one of which another
	// process shares that was attached to late.
	driver := failure()
	driver.PID, driver.Process, driver.API, driver.Snapshot = 20, "serve", "cuMemAllocAsync", snapshottest.Driver()
	driver.Stack = driver.Snapshot.Samples[2].Stack
	driver.GPUs = append([]snapshot.GPUMemory{{GPU: "1", Name: "NVIDIA H200", Total: 141 << 30, Used: 442 << 20, Free: 140 << 30}}, driver.GPUs...)
	late := failure()
	late.PID, late.Process, late.Tensor, late.Framework, late.Snapshot = 21, "serve", 0, nil, snapshottest.Driver()
	limit := failure()
	limit.Calls, limit.Requested, limit.Snapshot = 0, limit.Tensor, &snapshot.Snapshot{}
	pools := trains()
	pools.Allocator = &snapshottest.Pools().Allocators[0]
	for name, o := range map[string]*snapshot.OutOfMemory{
		"pools": pools, "failed": failure(), "recovered": recovered, "limit": limit, "driver": driver, "late": late, "tensors": trains(),
	} {
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

// The first screen says which request did not recover, and what came of it.
func TestFailures(t *testing.T) {
	made := func(n int64) *snapshot.Snapshot {
		return &snapshot.Snapshot{Meta: snapshot.Meta{Start: snapshottest.Start, Duration: 9e9}, Processes: []snapshot.Process{{PID: 7, Exited: true}},
			Samples: []snapshot.Sample{{Labels: snapshot.Labels{Kind: "tensor", PID: 7}, Values: snapshot.Values{AllocObjects: n}}}}
	}
	fails := func(second int, recovered bool) *snapshot.OutOfMemory {
		return &snapshot.OutOfMemory{Time: snapshottest.Start.Add(time.Duration(second) * time.Second), PID: 7, Process: "python3", Requested: 1 << 30, Recovered: recovered, Snapshot: made(5)}
	}
	refused := func(second int) *snapshot.OutOfMemory {
		o := fails(second, false)
		o.Calls = 2
		return o
	}
	ends, goesOn, unknown := made(5), made(8), made(0)
	running := made(8)
	running.Processes[0].Exited = false
	for name, c := range map[string]struct {
		end  *snapshot.Snapshot
		all  []*snapshot.OutOfMemory
		want string
	}{
		"none":           {ends, nil, ""},
		"recovered":      {ends, []*snapshot.OutOfMemory{fails(1, true)}, "1 request failed for want of memory, and recovered"},
		"once":           {ends, []*snapshot.OutOfMemory{fails(4, false)}, "1 request failed for want of memory, 4s after the trace began: python3 (7) asked for 1.00 GiB (--oom). It ended the process, which made no tensor afterwards and was gone within 5s."},
		"several":        {ends, []*snapshot.OutOfMemory{fails(1, true), fails(2, false), fails(4, false), fails(5, true)}, "4 requests failed for want of memory, of which 2 were granted in the end. The last one that was not, 4s after"},
		"caught":         {goesOn, []*snapshot.OutOfMemory{fails(2, false), fails(4, false)}, "2 requests failed for want of memory. The last one, 4s after the trace began: python3 (7) asked for 1.00 GiB (--oom). The program went on: it made 3 more tensors, and was gone within 5s."},
		"unknown":        {unknown, []*snapshot.OutOfMemory{fails(4, false)}, "(--oom). The process was gone within 5s."},
		"one by a limit": {unknown, []*snapshot.OutOfMemory{refused(2), fails(4, false)}, "2 requests failed for want of memory (1 by the driver, which was asked 2 times, and 1 by a limit of the program's own). "},
		"running":        {running, []*snapshot.OutOfMemory{fails(4, false)}, "The process still ran when the trace ended, 5s later."},
	} {
		o := Options{Moment: &Moment{At: 4e9, Peak: 4e9, End: c.end}, Width: 400}
		for _, f := range c.all {
			o.Failures.Add(f)
		}
		var page strings.Builder
		if err := Report(&page, c.end, o); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(page.String(), c.want) || c.want == "" && strings.Contains(page.String(), "emory 1 ") {
			t.Errorf("%s: no %q in\n%s", name, c.want, page.String())
		}
	}
	held := made(1) // at the end
	held.Samples[0].InuseBytes = 1
	o := Options{Moment: &Moment{Peak: 4e9, End: held}, File: "run.gmt", Width: 400}
	o.Failures.Add(fails(4, false))
	var page strings.Builder
	if err := Report(&page, made(0), o); err != nil {
		t.Fatal(err)
	}
	if text := page.String(); !strings.Contains(text, ": nothing was held, 4s before the last request failed for want of memory (--at oom).") || !strings.Contains(text, "Next\n  What was held when a request failed:\n    gpumemtrace report run.gmt --at oom\n") || strings.Contains(text, "--by line") {
		t.Errorf("before it: %s", text)
	}
}
