// Package snapshottest has snapshots that the tests of the outputs share.
package snapshottest

import (
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// Start is when every snapshot here begins.
var Start = time.Date(2026, 3, 14, 15, 9, 26, 535897932, time.UTC)

// API returns the frame of a driver entry point.
func API(name string) *snapshot.Location { return Frame(name, "", 0) }

// Frame returns a location without an address, as an interpreter's are.
func Frame(function, file string, line int) *snapshot.Location {
	return &snapshot.Location{Lines: []snapshot.Line{{Function: function, File: file, Line: line}}}
}

// Training is one PyTorch process: native and Python frames, an inlined
// function, an address without a name, host and device memory, failed calls,
// live rows, losses and a note.
func Training() *snapshot.Snapshot {
	python := &snapshot.Mapping{Start: 0x400000, Limit: 0xa00000, Path: "/usr/bin/python3.12", BuildID: "aa11"}
	c10 := &snapshot.Mapping{Start: 0x7f1000000000, Limit: 0x7f1000200000, Offset: 0x1000, Path: "/venv/lib/python3.12/site-packages/torch/lib/libc10_cuda.so", BuildID: "bb22", HasLines: true}
	cublas := &snapshot.Mapping{Start: 0x7f2000000000, Limit: 0x7f2010000000, Path: "/usr/local/cuda/lib64/libcublas.so.12"}

	malloc, hostAlloc := API("cuMemAlloc_v2"), API("cuMemHostAlloc")
	mallocRetry := &snapshot.Location{Address: 0x7f1000012345, Mapping: c10, Lines: []snapshot.Line{
		{Function: "c10::cuda::cudaMallocMaybeCapturing(void**, unsigned long)", System: "_ZN3c104cuda24cudaMallocMaybeCapturingEPPvm", File: "/pytorch/c10/cuda/CUDACachingAllocator.cpp", Line: 1021},
		{Function: "c10::cuda::DeviceCachingAllocator::malloc(unsigned long)", System: "_ZN3c104cuda22DeviceCachingAllocator6mallocEm", File: "/pytorch/c10/cuda/CUDACachingAllocator.cpp", Line: 1500},
	}}
	emptyCUDA := &snapshot.Location{Address: 0x7f1000054321, Mapping: c10, Lines: []snapshot.Line{
		{Function: "at::native::empty_cuda<float, (c10::DeviceType)1>(c10::ArrayRef<long>)", System: "_ZN2at6native10empty_cudaEv"}}}
	handle := &snapshot.Location{Address: 0x7f2000abcdef, Mapping: cublas, Lines: []snapshot.Line{
		{Function: "libcublas.so.12+0xabcdef", Reason: "no symbols"}}}
	linear := Frame("Linear.forward", "/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py", 125)
	forward, step := Frame("Model.forward", "/home/me/train.py", 41), Frame("step", "/home/me/train.py", 77)
	load, module := Frame("load", "/home/me/data.py", 12), Frame("<module>", "/home/me/train.py", 102)
	start := &snapshot.Location{Address: 0x401234, Mapping: python, Lines: []snapshot.Line{{Function: "_start"}}}

	labels := func(kind, api, gpu, owner string) snapshot.Labels {
		return snapshot.Labels{Kind: kind, API: api, GPU: gpu, Owner: owner, Process: "python3", PID: 4711}
	}
	taken := func(line, kind, api string, objects, bytes int64, frames ...*snapshot.Location) snapshot.Sample {
		return snapshot.Sample{Stack: append([]*snapshot.Location{API(line), API(api)}, frames...), Labels: labels(kind, api, "0", "pytorch"),
			Values: snapshot.Values{AllocObjects: objects, AllocBytes: bytes, PeakBytes: bytes, InuseObjects: objects, InuseBytes: bytes}}
	}
	return &snapshot.Snapshot{
		Meta: snapshot.Meta{
			Version: "0.1.0", CommandLine: "gpumemtrace -p 4711 -o train.pb.gz", Target: "pid 4711 (python3)",
			Driver: "580.159.04", StackMode: "full (native and Python)",
			Start: Start, Duration: 12*time.Second + 345*time.Millisecond, Events: 1234,
		},
		Mappings: []*snapshot.Mapping{python, c10, cublas},
		Samples: []snapshot.Sample{
			{
				Stack:  []*snapshot.Location{malloc, mallocRetry, emptyCUDA, linear, forward, step, module, start},
				Labels: labels("device", "cuMemAlloc_v2", "0", "pytorch"),
				Values: snapshot.Values{AllocObjects: 10, AllocBytes: 200 << 20, PeakBytes: 160 << 20, InuseObjects: 6, InuseBytes: 120 << 20, FailedObjects: 2, FailedBytes: 4 << 30},
			},
			{
				Stack:  []*snapshot.Location{malloc, handle, linear, forward, step, module, start},
				Labels: labels("device", "cuMemAlloc_v2", "0", "cublas"),
				Values: snapshot.Values{AllocObjects: 3, AllocBytes: 64<<20 + 129<<10, PeakBytes: 64<<20 + 129<<10, InuseObjects: 3, InuseBytes: 64<<20 + 129<<10},
			},
			{
				Stack:  []*snapshot.Location{hostAlloc, load, module, start},
				Labels: labels("host", "cuMemHostAlloc", "", "application"),
				Values: snapshot.Values{AllocObjects: 4, AllocBytes: 16 << 20, InuseObjects: 1, InuseBytes: 4 << 20},
			},
			{ // All of it freed again.
				Stack:  []*snapshot.Location{malloc, mallocRetry, emptyCUDA, step, module, start},
				Labels: labels("device", "cuMemAlloc_v2", "1", "pytorch"),
				Values: snapshot.Values{AllocObjects: 1, AllocBytes: 32 << 20, PeakBytes: 32 << 20},
			},
			{ // Failed calls only.
				Stack:  []*snapshot.Location{malloc, load, module, start},
				Labels: labels("device", "cuMemAlloc_v2", "0", "application"),
				Values: snapshot.Values{FailedObjects: 1, FailedBytes: 400 << 30},
			},
			{ // No stack, and the driver gave no device.
				Labels: labels("vmm", "cuMemCreate", "unknown", ""),
				Values: snapshot.Values{AllocObjects: 1, AllocBytes: 2 << 20, PeakBytes: 2 << 20, InuseObjects: 1, InuseBytes: 2 << 20},
			},
			// What the kernel driver handed out beyond.
			taken("[context]", "context", "cuDevicePrimaryCtxRetain", 17, 518<<20, load, module, start),
			taken("[code]", "code", "cuLibraryLoadData", 2, 4<<20, handle, linear, forward, step, module, start),
			taken("[local memory]", "local_memory", "cuLaunchKernel", 1, 90<<20, emptyCUDA, step, module, start),
			taken("[stream]", "stream", "cuStreamCreateWithPriority", 4, 8<<20, step, module, start),
			{
				Stack:  []*snapshot.Location{API("[driver rounding]")},
				Labels: labels("driver", "", "0", "cuda"),
				Values: snapshot.Values{PeakBytes: 2<<20 - 129<<10, InuseBytes: 2<<20 - 129<<10},
			},
		},
		Processes: []snapshot.Process{{
			PID: 4711, Name: "python3", Inuse: 186<<20 + 129<<10, Peak: 258<<20 + 129<<10, Allocated: 298<<20 + 129<<10,
			Physical: 808 << 20, Host: 4 << 20, LiveObjects: 11, Failed: 3, OutOfMemory: 3, UnmatchedFrees: 5,
		}},
		Accounts: []snapshot.Account{{
			PID: 4711, Process: "python3", GPU: "0", Total: 806 << 20, Known: true, Driver: 806 << 20, DriverKnown: true, Compared: true,
			Lines: []snapshot.AccountLine{
				{Name: "allocations", Bytes: 184<<20 + 129<<10},
				{Name: "[driver rounding]", Bytes: 2<<20 - 129<<10},
				{Name: "[context]", Bytes: 518 << 20},
				{Name: "[code]", Bytes: 4 << 20},
				{Name: "[local memory]", Bytes: 90 << 20},
				{Name: "[stream]", Bytes: 8 << 20},
			},
		}},
		Live: []snapshot.Allocation{
			{Sample: 0, Address: 0x7f3000000000, Size: 20 << 20, Time: Start.Add(time.Second)},
			{Sample: 1, Address: 0x7f3002000000, Size: 64 << 20, Time: Start.Add(2 * time.Second)},
			{Sample: 2, Address: 0x7f4000000000, Size: 4 << 20, Time: Start.Add(3*time.Second + 7)},
			{Sample: 5, Handle: 0xffffffffffffffff, Size: 2 << 20, Time: Start.Add(4 * time.Second)},
		},
		Loss: []loss.Counter{
			{Name: "events_ring_full", Help: "events dropped because the ring buffer was full", Value: 3},
			{Name: "stacks_missing", Help: "events without a stack"},
		},
		Notes: []string{"libcuda has no cuMemAllocFromPoolAsync_ptsz"},
	}
}

// TwoProcesses are two programs on one GPU, one of which has exited, with a
// Python frame that both share by content but not by pointer.
func TwoProcesses() *snapshot.Snapshot {
	sample := func(pid int, name string, bytes int64) snapshot.Sample {
		return snapshot.Sample{
			Stack:  []*snapshot.Location{API("cuMemAllocAsync"), Frame("serve", "/srv/serve.py", 9)},
			Labels: snapshot.Labels{Kind: "async", API: "cuMemAllocAsync", Runtime: "cudaMallocAsync", GPU: "0", Owner: "cupy", Process: name, PID: pid},
			Values: snapshot.Values{AllocObjects: 1, AllocBytes: bytes, PeakBytes: bytes, InuseObjects: 1, InuseBytes: bytes},
		}
	}
	return &snapshot.Snapshot{
		Meta:    snapshot.Meta{Version: "0.1.0", Target: "all processes", Start: Start, Duration: time.Second},
		Samples: []snapshot.Sample{sample(10, "serve", 3<<20), sample(11, "serve", 5<<20)},
		Processes: []snapshot.Process{
			{PID: 10, Name: "serve", Inuse: 3 << 20, Peak: 3 << 20, Allocated: 3 << 20, LiveObjects: 1},
			{PID: 11, Name: "serve", Exited: true, Inuse: 5 << 20, Peak: 5 << 20, Allocated: 5 << 20, LiveObjects: 1},
		},
		Live: []snapshot.Allocation{{Sample: 1, Address: 0x1000, Size: 5 << 20, Time: Start}},
	}
}

// Tenants are TwoProcesses of two users, one in a pod and one a job, and a third one of which
// less is known.
func Tenants() *snapshot.Snapshot {
	s := TwoProcesses()
	third, process := s.Samples[0], s.Processes[0]
	third.PID, process.PID = 12, 12
	third.InuseBytes, process.Inuse = 1<<20, 1<<20
	s.Samples, s.Processes = append(s.Samples, third), append(s.Processes, process)
	for i, who := range []snapshot.Who{
		{User: "ada", Command: "python3 /srv/serve.py --model llama-8b --dtype bf16", Namespace: "research", Pod: "serve-0", PodUID: "2c48913c-b29f-11e7-9350-020968147796", Container: "main", ContainerID: strings.Repeat("0123456789abcdef", 4)},
		{User: "1001", Command: "python3 /srv/serve.py " + strings.Repeat("--option ", 30), Service: "slurmd.service", Job: "4711"},
		{User: "ada", ContainerID: strings.Repeat("fedcba9876543210", 4), Command: "\x1b[2J\n\xff=cmd|'/c calc'!A0"},
	} {
		s.Samples[i].Who, s.Processes[i].Who = &who, who
	}
	return s
}

// Hostile is what a traced program would call itself to harm a reader:
// terminal escapes, separators, spreadsheet formulas, bytes that are no UTF-8.
func Hostile() *snapshot.Snapshot {
	mapping := &snapshot.Mapping{Start: 0x1000, Limit: 0x2000, Path: "/tmp/\x1b[2J;\n.so", BuildID: "\xff"}
	return &snapshot.Snapshot{
		Meta:     snapshot.Meta{Version: "0.1.0", Target: "pid 1 (\x1b]0;owned\a)", CommandLine: "gpumemtrace\n-p 1\u009b2J\x7f\u202e\U000e0041", Start: Start},
		Mappings: []*snapshot.Mapping{mapping},
		Samples: []snapshot.Sample{{
			Stack: []*snapshot.Location{
				API("cuMemAlloc_v2"),
				{Address: 0x1500, Mapping: mapping, Lines: []snapshot.Line{{Function: "a;b\nc 99\x1b[31m", File: "/tmp/\r\xfe.c", Line: 1}}},
			},
			Labels: snapshot.Labels{Kind: "device", API: "=cmd|'/c calc'!A0", GPU: "0", Owner: "@owner", Process: "-\x1b[2J;x\n\xff", PID: 1},
			Values: snapshot.Values{AllocObjects: 1, AllocBytes: 1, InuseObjects: 1, InuseBytes: 1},
		}},
		Processes: []snapshot.Process{{PID: 1, Name: "-\x1b[2J;x\n\xff", Inuse: 1, Peak: 1, Allocated: 1, LiveObjects: 1}},
		Live:      []snapshot.Allocation{{Sample: 0, Address: 1, Size: 1, Time: Start}},
		Loss:      []loss.Counter{{Name: "x\x1b", Help: "y\n", Value: 1}},
		Notes:     []string{"note\x1b[0m"},
	}
}
