package record

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

// The format of a version does not change: what was recorded stays readable. A
// change of this file is a change of fileVersion.
func TestGolden(t *testing.T) {
	want := append(newMaker(42).records(150), objects()...)
	data := encoded(t, 4<<10, want...)
	snapshottest.Golden(t, "version3.rec", data)
	if fileVersion != 3 {
		t.Error("the golden file has another version's name")
	}
	if d := cmp.Diff(want, readAll(t, newTestReader(t, data)), comparePlaces); d != "" {
		t.Error(d)
	}
}

// A recording of version 2 is read, and says nothing of users.
func TestOlderVersion(t *testing.T) {
	want := append(newMaker(42).records(150), objects()...)
	for _, r := range want {
		if p, ok := r.(*Process); ok {
			p.User = 0
		}
	}
	data, err := os.ReadFile("testdata/version2.rec")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, readAll(t, newTestReader(t, data)), comparePlaces); d != "" {
		t.Error(d)
	}
}
