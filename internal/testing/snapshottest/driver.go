package snapshottest

import (
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// Driver is a process of which every byte on two GPUs is explained, by what the
// kernel driver was seen to hand out, beside one that was attached to late.
func Driver() *snapshot.Snapshot {
	module, work := Frame("<module>", "/home/me/serve.py", 7), Frame("work", "/home/me/serve.py", 31)
	labels := func(kind, api, gpu, owner string) snapshot.Labels {
		return snapshot.Labels{Kind: kind, API: api, GPU: gpu, Owner: owner, Process: "serve", PID: 20}
	}
	held := func(objects, bytes int64) snapshot.Values {
		return snapshot.Values{AllocObjects: objects, AllocBytes: bytes, PeakBytes: bytes, InuseObjects: objects, InuseBytes: bytes}
	}
	// taken is memory that the driver took in a call.
	taken := func(frame, kind, api, gpu string, values snapshot.Values, frames ...*snapshot.Location) snapshot.Sample {
		return snapshot.Sample{Stack: append([]*snapshot.Location{API(frame), API(api)}, frames...), Labels: labels(kind, api, gpu, "application"), Values: values}
	}
	rest := func(frame, gpu string, pid int, bytes int64) snapshot.Sample {
		l := labels("driver", "", gpu, "cuda")
		l.PID = pid
		return snapshot.Sample{Stack: []*snapshot.Location{API(frame)}, Labels: l, Values: snapshot.Values{InuseBytes: bytes, PeakBytes: bytes}}
	}
	late := labels("device", "cuMemAlloc_v2", "0", "pytorch")
	late.PID = 21
	host, managed := labels("host", "cuMemHostAlloc", "", "application"), labels("managed", "cuMemAllocManaged", "0", "application")
	return &snapshot.Snapshot{
		Meta: snapshot.Meta{Version: "0.1.0", Target: "2 processes", Driver: "580.159.04", Start: Start, Duration: time.Minute},
		Samples: []snapshot.Sample{
			{Stack: []*snapshot.Location{API("cuMemAlloc_v2"), work, module}, Labels: labels("device", "cuMemAlloc_v2", "0", "application"), Values: held(3, 6<<20-1000)},
			{Stack: []*snapshot.Location{API("cuMemAlloc_v2"), module}, Labels: labels("device", "cuMemAlloc_v2", "0", "application"), Values: held(1, 512<<20)},
			{Stack: []*snapshot.Location{API("cuMemAllocAsync"), work, module}, Labels: labels("async", "cuMemAllocAsync", "0", "application"), Values: held(2, 20<<20)},
			{Stack: []*snapshot.Location{API("cuMemHostAlloc"), module}, Labels: host, Values: held(1, 8<<20)},
			{Stack: []*snapshot.Location{API("cuMemAllocManaged"), module}, Labels: managed, Values: held(1, 64<<20)},
			taken("[context]", "context", "cuDevicePrimaryCtxRetain", "0", held(1, 414<<20), module),
			taken("[context]", "context", "cuDevicePrimaryCtxRetain", "0", held(14, 28<<20), module),
			taken("[context]", "context", "cuDevicePrimaryCtxRetain", "1", held(15, 442<<20), work, module),
			taken("[code]", "code", "cuModuleLoadData", "0", held(1, 2<<20), module),
			taken("[code]", "code", "cuLaunchKernel", "0", held(2, 12<<20), work, module),
			taken("[stream]", "stream", "cuStreamCreate", "0", held(4, 8<<20), module),
			taken("[stream]", "stream", "cuStreamCreate", "0", held(1, 2<<20), work, module),
			taken("[local memory]", "local_memory", "cuLaunchKernel", "0", snapshot.Values{AllocObjects: 1, AllocBytes: 90 << 20, PeakBytes: 90 << 20}, work, module),
			taken("[driver's system memory]", "system", "cuDevicePrimaryCtxRetain", "", held(26, 70<<20), module),
			rest("[driver rounding]", "0", 20, 1000),
			rest("[pool]", "0", 20, 12<<20),
			{Stack: []*snapshot.Location{API("cuMemAlloc_v2"), module}, Labels: late, Values: held(1, 2<<20)},
			rest("[allocated before attach]", "0", 21, 700<<20),
		},
		Processes: []snapshot.Process{
			{PID: 20, Name: "serve", Inuse: 538<<20 - 1000, Peak: 538<<20 - 1000, Allocated: 538<<20 - 1000, Host: 78 << 20, Managed: 64 << 20,
				Physical: 1458 << 20, LiveObjects: 8, Async: 20 << 20, AsyncHigh: 32 << 20},
			{PID: 21, Name: "serve", Inuse: 2 << 20, Peak: 2 << 20, Allocated: 2 << 20, LiveObjects: 1},
		},
		Accounts: []snapshot.Account{
			{PID: 20, Process: "serve", GPU: "0", Total: 1016 << 20, Known: true, Driver: 1016 << 20, DriverKnown: true, Compared: true, Lines: []snapshot.AccountLine{
				{Name: "allocations", Bytes: 538<<20 - 1000}, {Name: "[driver rounding]", Bytes: 1000}, {Name: "[pool]", Bytes: 12 << 20},
				{Name: "[context]", Bytes: 442 << 20}, {Name: "[code]", Bytes: 14 << 20}, {Name: "[stream]", Bytes: 10 << 20},
			}},
			{PID: 20, Process: "serve", GPU: "1", Total: 442 << 20, Known: true, Driver: 444 << 20, DriverKnown: true, Compared: true, Difference: 2 << 20, Lines: []snapshot.AccountLine{
				{Name: "allocations"}, {Name: "[context]", Bytes: 442 << 20},
			}},
			{PID: 21, Process: "serve", GPU: "0", Total: 702 << 20, Known: true, Driver: 702 << 20, DriverKnown: true, Lines: []snapshot.AccountLine{
				{Name: "allocations", Bytes: 2 << 20}, {Name: "[allocated before attach]", Bytes: 700 << 20, Note: "includes the CUDA context as it was at attach"},
			}},
		},
	}
}
