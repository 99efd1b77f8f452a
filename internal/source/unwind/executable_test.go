package unwind

import (
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// A fresh mapping takes the place of those that it lies on, in part or in whole.
func TestWith(t *testing.T) {
	at := func(start, end uint64) proc.Mapping {
		return proc.Mapping{Start: start, End: end, File: proc.FileID{Ino: start}, Path: "/a"}
	}
	known := []proc.Mapping{at(10, 20), at(20, 30), at(40, 50), at(60, 70)}
	got := merge(known, []proc.Mapping{at(30, 35), at(25, 42), {Start: 60, End: 70}, at(5, 10)})
	want := []proc.Mapping{at(5, 10), at(10, 20), at(25, 42), at(60, 70)}
	if len(got) != len(want) {
		t.Fatalf("%v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%v, want %v", got[i], want[i])
		}
	}
	if len(known) != 4 || known[1] != at(20, 30) {
		t.Error("what was known has changed")
	}
}
