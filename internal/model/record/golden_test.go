package record

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/holdertest"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

var someBlocks = &holder.Reading{Begin: 77, Allocators: []holder.Allocator{
	{Device: 0, Blocks: []holder.Block{{Address: 0x7f0000000000, Size: 2048, Requested: 2000, Stream: 5, State: holder.Allocated, First: true, Small: true, Private: holder.PoolID{First: 1}}, {Address: 0x7f0000000800, Size: 1 << 20, State: holder.Waiting}}},
	{Device: 1, Blocks: []holder.Block{{Address: 0x7e0000000000, Size: 1 << 40, State: holder.Unmapped, First: true, Expandable: true, Private: holder.UnknownPool}}},
}}

// A change of the file is a change of fileVersion.
func TestGolden(t *testing.T) {
	want := append(newMaker(42).records(150), objects()...)
	for _, h := range Heaps(event.Process{PID: 4711, Start: event.StartUnit}, holdertest.Training()) {
		want = append(want, h)
	}
	for _, part := range BlocksOf(event.Process{PID: 4711, Start: event.StartUnit}, someBlocks) {
		want = append(want, part)
	}
	want = append(want, tensorEvents()...)
	want = append(want, tensorWindow()...)
	data := encoded(t, 16<<10, want...)
	snapshottest.Golden(t, "version14.rec", data)
	if fileVersion != 14 {
		t.Error("the golden file has another version's name")
	}
	if d := cmp.Diff(want, readAll(t, newTestReader(t, data)), comparePlaces); d != "" {
		t.Error(d)
	}
}
