package probes

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// A record is one of the kernel side's, for tests to make.
type record struct {
	kind           uint32
	row, outer     uint16
	time, start    uint64
	pid, tid       uint32
	result, device int32
	ctx, stack     uint64
	v              [values]uint64
}

func (r record) bytes() []byte {
	var b []byte
	for _, v := range []any{r.kind, r.row, r.outer, r.time, r.start, r.pid, r.tid, r.result, r.device, r.ctx, r.stack, r.v} {
		b, _ = binary.Append(b, binary.LittleEndian, v)
	}
	return b
}

func stackBytes(id, start uint64, pid, frames, flags uint32, words ...uint64) []byte {
	var b []byte
	for _, v := range []any{uint32(recordStack), frames, id, start, pid, flags, words} {
		b, _ = binary.Append(b, binary.LittleEndian, v)
	}
	return b
}

// entry returns the index of a symbol in Entries.
func entryIndex(symbol string) uint16 {
	return uint16(slices.IndexFunc(Entries, func(e Entry) bool { return e.Symbol == symbol }))
}

// A heard handler keeps the last of each.
type heard struct {
	events []event.Event
	stacks []Stack
}

func (h *heard) Event(e *event.Event) { h.events = append(h.events, *e) }
func (h *heard) Stack(s *Stack) {
	c := *s
	c.Words = slices.Clone(s.Words)
	h.stacks = append(h.stacks, c)
}

func TestDecode(t *testing.T) {
	// Start times are known to the unit of /proc/PID/stat.
	proc := event.Process{PID: 7, Start: 5_000_001}
	base := record{kind: recordCall, time: 9, start: proc.Start, pid: 7, tid: 8, device: -1, ctx: 3, stack: 4}
	call := func(symbol string, v ...uint64) record {
		r := base
		r.row = entryIndex(symbol)
		copy(r.v[:], v)
		return r
	}
	failed := func(r record) record { r.result = 2; return r }
	want := event.Event{Time: 9, Proc: proc, TID: 8, Device: -1, Ctx: 3, Stack: 4}
	for _, c := range []struct {
		name   string
		record record
		want   func(e *event.Event)
	}{
		{"pointer and size", call("cuMemAlloc_v2", 0x1000, 64), func(e *event.Event) {
			e.Op, e.Kind, e.Addr, e.Size = event.OpAlloc, event.KindDevice, 0x1000, 64
		}},
		{"a size beyond an int64", call("cuMemAlloc_v2", 0x1000, 1<<63), func(e *event.Event) {
			e.Op, e.Kind, e.Addr, e.Size = event.OpAlloc, event.KindDevice, 0x1000, 1<<63-1
		}},
		{"32-bit size with rubbish above", call("cuMemAlloc", 0x1000, 0xdead_0000_0040), func(e *event.Event) {
			e.Op, e.Kind, e.Addr, e.Size = event.OpAlloc, event.KindDevice, 0x1000, 64
		}},
		{"32-bit pointer with rubbish above", call("cuMemFree", 0xdead_0000_1000), func(e *event.Event) {
			e.Op, e.Addr = event.OpFree, 0x1000
		}},
		{"pitch times height", call("cuMemAllocPitch_v2", 0x1000, 512, 500, 3), func(e *event.Event) {
			e.Op, e.Kind, e.Addr, e.Size = event.OpAlloc, event.KindDevice, 0x1000, 1536
		}},
		{"a pitch that a failed call did not write", failed(call("cuMemAllocPitch_v2", 0xdead, 0xdead, 500, 3)), func(e *event.Event) {
			e.Op, e.Kind, e.Size, e.Result = event.OpAlloc, event.KindDevice, 1500, 2
		}},
		{"a 32-bit one", failed(call("cuMemAllocPitch", 0xdead, 0xdead, 0xdead_0000_01f4, 0xdead_0000_0003)), func(e *event.Event) {
			e.Op, e.Kind, e.Size, e.Result = event.OpAlloc, event.KindDevice, 1500, 2
		}},
		{"one of three dimensions", failed(call("cudaMalloc3D", 0xdead, 0xdead, 500, 3, 2)), func(e *event.Event) {
			e.Op, e.Kind, e.Size, e.Result = event.OpAlloc, event.KindDevice, 3000, 2
		}},
		{"a context that a failed call did not write", failed(call("cuCtxCreate_v2", 0xdead, 1)), func(e *event.Event) {
			e.Op, e.Device, e.Result = event.OpContextCreate, 1, 2
		}},
		{"a context that was not there to be destroyed", failed(call("cuCtxDestroy_v2", 0xdead)), func(e *event.Event) {
			e.Op, e.Result = event.OpContextDestroy, 2
		}},
		{"host memory is on no device", func() record { r := call("cuMemHostAlloc", 0x1000, 64); r.device = 1; return r }(), func(e *event.Event) {
			e.Op, e.Kind, e.Addr, e.Size = event.OpAlloc, event.KindHost, 0x1000, 64
		}},
		{"physical memory on device 2", call("cuMemCreate", 64, 0x77, 2<<32|1), func(e *event.Event) {
			e.Op, e.Kind, e.Handle, e.Size, e.Device = event.OpHandleCreate, event.KindVMM, 0x77, 64, 2
		}},
		{"physical memory of the host", call("cuMemCreate", 64, 0x77, 3<<32|3), func(e *event.Event) {
			e.Op, e.Kind, e.Handle, e.Size = event.OpHandleCreate, event.KindVMMHost, 0x77, 64
		}},
		{"part of a sparse array goes", call("cuMemMapArrayAsync", 0x1000, 0, 2, 0, 0, 0), func(e *event.Event) {
			e.Op, e.Addr = event.OpUnmapArray, 0x1000
		}},
		{"memory of a captured stream", call("cuMemAllocFromPoolAsync", 0x1000, 64, 0x70, 0x50), func(e *event.Event) {
			e.Op, e.Kind, e.Addr, e.Size, e.Handle, e.Stream = event.OpAlloc, event.KindAsync, 0x1000, 64, 0x70, 0x50
		}},
		{"each thread's own stream", call("cuMemAllocAsync_ptsz", 0x1000, 64, 0), func(e *event.Event) {
			e.Op, e.Kind, e.Addr, e.Size, e.Stream = event.OpAlloc, event.KindAsync, 0x1000, 64, event.StreamPerThread
		}},
		{"the stream that all threads share", call("cuMemAllocAsync", 0x1000, 64, 0), func(e *event.Event) {
			e.Op, e.Kind, e.Addr, e.Size = event.OpAlloc, event.KindAsync, 0x1000, 64
		}},
		{"a capture into a graph begins", call("cuStreamBeginCaptureToGraph_ptsz", 0x60, 0), func(e *event.Event) {
			e.Op, e.Handle, e.Stream = event.OpCaptureBegin, 0x60, event.StreamPerThread
		}},
		{"a capture ends", call("cuStreamEndCapture", 0x60, 0x50), func(e *event.Event) {
			e.Op, e.Handle, e.Stream = event.OpCaptureEnd, 0x60, 0x50
		}},
		{"a node that allocates", call("cuGraphAddNode", 0x1000, 64, 0x60, 10, 3, 2<<32|1), func(e *event.Event) {
			e.Op, e.Kind, e.Addr, e.Size, e.Handle, e.Device = event.OpAlloc, event.KindGraph, 0x1000, 64, 0x60, 2
		}},
		{"a node that frees", call("cuGraphAddNode_v2", 7, 7, 0x60, 11, 0x1000, 7), func(e *event.Event) {
			e.Op, e.Addr = event.OpFree, 0x1000
		}},
		{"a child graph that is given away", call("cuGraphAddNode_v2", 7, 7, 0x60, 4, 0x61, 7<<32|1), func(e *event.Event) {
			e.Op, e.Handle, e.Part = event.OpGraphMove, 0x60, 0x61
		}},
		{"a child graph that is copied", call("cuGraphAddNode_v2", 7, 7, 0x60, 4, 0x61, 7<<32), func(e *event.Event) {}},
		{"a node of a kernel", call("cuGraphAddNode", 7, 7, 0x60, 0, 0x61, 1), func(e *event.Event) {}},
		{"context", call("cuCtxCreate_v2", 0x66, 1), func(e *event.Event) {
			e.Op, e.Ctx, e.Device = event.OpContextCreate, 0x66, 1
		}},
		{"fork", func() record {
			r := base
			r.kind, r.v = recordFork, [values]uint64{70, 6_000_001, word("python3"), word("")}
			return r
		}(), func(e *event.Event) {
			e.Op, e.Child = event.OpFork, event.Process{PID: 70, Start: 6_000_001}
			e.Name = "python3"
		}},
		{"exec", func() record {
			r := base
			r.kind, r.v[2], r.v[3] = recordExec, word("fifteen-"), word("letters")
			return r
		}(), func(e *event.Event) { e.Op, e.Name = event.OpExec, "fifteen-letters" }},
		{"exit", func() record { r := base; r.kind = recordExit; return r }(), func(e *event.Event) { e.Op = event.OpExit }},
	} {
		t.Run(c.name, func(t *testing.T) {
			// A plan's slots are address, size, handle, context and device,
			// those that its row has, and then the extra values.
			h, d := &heard{}, &decoder{}
			if err := d.decode(c.record.bytes(), h); err != nil || len(h.events) != 1 {
				t.Fatalf("%d events, %v", len(h.events), err)
			}
			w := want
			w.API = c.record.row
			c.want(&w)
			if diff := cmp.Diff(w, h.events[0]); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// word is up to eight bytes of a text as a record has them.
func word(text string) uint64 {
	var b [8]byte
	copy(b[:], text)
	return binary.LittleEndian.Uint64(b[:])
}

func TestDecodeStack(t *testing.T) {
	h, d := &heard{}, &decoder{}
	if err := d.decode(stackBytes(1, 5_000_003, 7, 2, 3, 10, 11, 12), h); err != nil {
		t.Fatal(err)
	}
	want := []Stack{{ID: 1, Process: event.Process{PID: 7, Start: 5_000_003}, Flags: 3, Frames: 2, Words: []uint64{10, 11, 12}}}
	if diff := cmp.Diff(want, h.stacks); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestDecodeProcAddress(t *testing.T) {
	r := record{kind: recordCall, row: entryIndex("cuGetProcAddress_v2"), start: 5, pid: 7}
	var name [32]byte
	copy(name[:], "cuMemAllocFromPoolAsync\x00rubbish")
	for i := range 4 {
		r.v[i] = binary.LittleEndian.Uint64(name[8*i:])
	}
	r.v[4] = 0x1234
	var got []procAddress
	h, d := &heard{}, &decoder{onProcAddress: func(p procAddress) { got = append(got, p) }}
	if err := d.decode(r.bytes(), h); err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0].name != "cuMemAllocFromPoolAsync" || got[0].address != 0x1234 || len(h.events) != 0 {
		t.Errorf("heard %+v and %d events", got, len(h.events))
	}
	r.result = 500 // not found: nothing to compare
	if err := d.decode(r.bytes(), h); err != nil || len(got) != 1 {
		t.Errorf("a failed question: %v, %d answers", err, len(got))
	}
}

func TestDecodeMalformed(t *testing.T) {
	whole := record{kind: recordCall, row: 1}.bytes()
	past := record{kind: recordCall, row: uint16(len(Entries))}.bytes()
	outer := record{kind: recordCall, row: 1, outer: uint16(len(Entries))}.bytes()
	for name, raw := range map[string][]byte{
		"nothing":            nil,
		"short":              whole[:31],
		"short event":        whole[:eventBytes-1],
		"row 0":              record{kind: recordCall}.bytes(),
		"row past the table": past,
		"outer row past it":  outer,
		"exec with a row":    record{kind: recordExec, row: 1}.bytes(),
		"type 0":             record{}.bytes(),
		"type 6":             record{kind: 6}.bytes(),
		"stack too long":     stackBytes(1, 1, 1, maxWords+1, 0, make([]uint64, maxWords+1)...),
		"half a word":        stackBytes(1, 1, 1, 3, 0, 1, 2)[:stackHeaderBytes+12],
	} {
		h, d := &heard{}, &decoder{}
		if err := d.decode(raw, h); !errors.Is(err, errRecord) || len(h.events)+len(h.stacks) != 0 {
			t.Errorf("%s: %v, %d events, %d stacks", name, err, len(h.events), len(h.stacks))
		}
	}
}

// What is decoded is sound, whatever comes: rows in the table, sizes that an
// int64 holds, host memory on no device.
func FuzzDecode(f *testing.F) {
	for i := range Entries {
		f.Add(record{kind: recordCall, row: uint16(i), time: 1, start: 2, pid: 3, v: [values]uint64{1, 2, 3, 4, 5, 6, 7, 8}}.bytes())
	}
	f.Add(stackBytes(1, 2, 3, 2, 1, 4, 5))
	f.Add(record{kind: recordFork, v: [values]uint64{1, 2}}.bytes())
	f.Fuzz(func(t *testing.T, raw []byte) {
		h := &heard{}
		named := 0
		d := &decoder{onProcAddress: func(procAddress) { named++ }}
		err := d.decode(raw, h)
		if n := len(h.events) + len(h.stacks) + named; err != nil && n != 0 || n > 1 {
			t.Fatalf("%v, and %d results", err, n)
		}
		for _, e := range h.events {
			if e.Size > 1<<63-1 || int(e.API) >= len(Entries) || e.Kind >= event.NumKinds || e.Space >= event.NumSpaces {
				t.Errorf("event %+v", e)
			}
			if e.Kind.Class() == event.ClassHost && e.Device != event.NoDevice {
				t.Errorf("host memory on device %d", e.Device)
			}
		}
		for _, s := range h.stacks {
			if len(s.Words)*8 > len(raw) {
				t.Errorf("%d frames of %d bytes", len(s.Words), len(raw))
			}
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	raw := record{kind: recordCall, row: entryIndex("cuMemAlloc_v2"), time: 1, start: 2, pid: 3, stack: 9,
		v: [values]uint64{0x1000, 4096}}.bytes()
	d := &decoder{}
	var h counted
	for b.Loop() {
		if err := d.decode(raw, &h); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(h)/b.Elapsed().Seconds(), "events/s")
	b.ReportAllocs()
}

type counted int

func (c *counted) Event(*event.Event) { *c++ }
func (c *counted) Stack(*Stack)       {}

// Functions are named as their source has them; most have no other name.
func TestAPINames(t *testing.T) {
	names := APINames()
	if len(names) != len(Entries) || names[0] != "" {
		t.Fatalf("%d names, %d entries, first %q", len(names), len(Entries), names[0])
	}
	for i, e := range Entries {
		want := e.Symbol
		switch {
		case strings.HasPrefix(e.Symbol, tensorSymbol):
			want = "c10::reportMemoryUsageToProfiler"
		case strings.HasPrefix(e.Symbol, allocatorSymbol+"19"):
			want = "c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::beginAllocateToPool"
		case strings.HasPrefix(e.Symbol, allocatorSymbol):
			want = "c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::endAllocateToPool"
		case strings.HasPrefix(e.Symbol, "_ZN"):
			want = "c10::reportOutOfMemoryToProfiler"
		}
		if names[i] != want {
			t.Errorf("%s is %s, want %s", e.Symbol, names[i], want)
		}
	}
}
