package record

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/holdertest"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

// A change of the file is a change of fileVersion.
func TestGolden(t *testing.T) {
	want := append(newMaker(42).records(150), objects()...)
	for _, h := range Heaps(event.Process{PID: 4711, Start: event.StartUnit}, holdertest.Training()) {
		want = append(want, h)
	}
	want = append(want, tensorEvents()...)
	want = append(want, tensorWindow()...)
	data := encoded(t, 16<<10, want...)
	snapshottest.Golden(t, "version12.rec", data)
	if fileVersion != 12 {
		t.Error("the golden file has another version's name")
	}
	if d := cmp.Diff(want, readAll(t, newTestReader(t, data)), comparePlaces); d != "" {
		t.Error(d)
	}
}
