package record_test

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
)

// Older programs left small tensors without events and had tallies for them. Such a
// recording reads as one of a sample, whose tallies are of all tensors.
func TestOlderSmallTensors(t *testing.T) {
	f := recordtest.Forge(1 << 20)
	f.Trace(0, "cuMemAlloc_v2")
	f.Entry(recordtest.EntryTensors).Uint(0, 4096).Int(100).Uint(1)
	f.Uint(1, 2).Int(3).Uint(40, 50).Uint(1, 10, 2, 20).Uint(3, 30, 4, 40)
	want := []record.Record{&record.Tensors{Sample: 1, Time: 100, Allocators: []record.Allocator{{Process: event.Process{PID: 1, Start: 2}, Device: 3, Allocated: 40, Reserved: 50,
		Made: record.Tally{Count: 4, Bytes: 40}, Freed: record.Tally{Count: 6, Bytes: 60}}}}}
	if d := cmp.Diff(want, readForged(t, f)[1:]); d != "" {
		t.Error(d)
	}
}

// readForged returns the records that are read from a forged file.
func readForged(t *testing.T, f *recordtest.Forger) (out []record.Record) {
	t.Helper()
	r, err := record.NewReader(bytes.NewReader(f.Bytes()), int64(len(f.Bytes())))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for {
		got, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			t.Fatal(err)
		}
		if e, ok := got.(*event.Event); ok {
			own := *e
			got = &own
		}
		out = append(out, got)
	}
}

// Before version 7 the tensor layer had the operations of the driver layer, with a space of its
// own. They are read as those of the tensor layer. Others never had that space.
func TestOlderTensors(t *testing.T) {
	const tensorSpace = 4
	e := event.Event{Time: 100, Proc: event.Process{PID: 1, Start: 2}, TID: 3, Addr: 1 << 40, Size: 512, Handle: 512, Part: 2 << 20}
	f := recordtest.Forge(1 << 20)
	f.Trace(0, "cuMemAlloc_v2")
	var want []record.Record
	for _, op := range []struct{ written, read event.Op }{
		{event.OpAlloc, event.OpTensorAlloc}, {event.OpFree, event.OpTensorFree}, {event.OpReserve, event.OpSegmentSeen},
		{event.OpCaptureBegin, event.OpPrivatePoolBegin}, {event.OpCaptureEnd, event.OpPrivatePoolEnd}, {event.OpMap, event.OpPrivatePoolMemory},
	} {
		written, read := e, e
		written.Op, written.Space, read.Op = op.written, tensorSpace, op.read
		driver := e
		driver.Op = op.written
		f.Event(written).Event(driver)
		want = append(want, &read, &driver)
	}
	f.Block()
	e.Op, e.Space = event.OpUnmap, tensorSpace
	f.Event(e)
	if d := cmp.Diff(want, readForged(t, f)[1:]); d != "" {
		t.Error(d)
	}
}
