package record

import (
	"fmt"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/holdertest"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

// The format of a version does not change: what was recorded stays readable. A
// change of this file is a change of fileVersion.
func TestGolden(t *testing.T) {
	want := append(newMaker(42).records(150), objects()...)
	for _, h := range Heaps(event.Process{PID: 4711, Start: event.StartUnit}, holdertest.Training()) {
		want = append(want, h)
	}
	want = append(want, tensorEvents()...)
	want = append(want, tensorWindow()...)
	data := encoded(t, 16<<10, want...)
	snapshottest.Golden(t, "version9.rec", data)
	if fileVersion != 9 {
		t.Error("the golden file has another version's name")
	}
	if d := cmp.Diff(want, readAll(t, newTestReader(t, data)), comparePlaces); d != "" {
		t.Error(d)
	}
}

// A recording of an older version is read: version 2 says nothing of users, version 3 has no
// heaps, version 4 says of users nothing but their numbers, before version 6 heaps have no
// modules, before version 7 stacks have none and tensors no operations of their own, and before
// version 8 there are no windows. TestOlderTensors is about the older operations of tensors.
func TestOlderVersion(t *testing.T) {
	for version := 2; version < fileVersion; version++ {
		want := append(newMaker(42).records(150), objects()...)
		for _, r := range want {
			if s, ok := r.(*Stack); ok && version < 7 {
				s.Modules = nil
			}
			if p, ok := r.(*Process); ok {
				if version < 5 {
					p.Who = snapshot.Who{}
				}
				if version < 3 {
					p.User = 0
				}
			}
		}
		if version > 3 {
			r := holdertest.Training()
			if version < 6 {
				r.Modules = nil
				for i := range r.Storages {
					r.Storages[i].Module = ""
				}
			}
			for _, h := range Heaps(event.Process{PID: 4711, Start: event.StartUnit}, r) {
				want = append(want, h)
			}
		}
		if version > 6 {
			want = append(want, tensorEvents()...)
		}
		if version > 7 {
			want = append(want, tensorWindow()...)
		}
		data, err := os.ReadFile(fmt.Sprintf("testdata/version%d.rec", version))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, readAll(t, newTestReader(t, data)), comparePlaces); d != "" {
			t.Errorf("version %d: %s", version, d)
		}
	}
}
