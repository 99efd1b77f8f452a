package heap

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

// buildWords builds a module that makes extension types.
func buildWords(t testing.TB, python string) string { return buildModule(t, python, "words") }

// inPool returns the storages of a holder, which must be so many.
func inPool(t testing.TB, r *holder.Reading, name string, n int) (out []holder.Storage) {
	t.Helper()
	for _, s := range r.Storages {
		if s.Holder == name {
			out = append(out, s)
		}
	}
	if len(out) != n {
		t.Errorf("%d storages are %s, want %d", len(out), name, n)
	}
	return out
}

// Arrays of CuPy (of a stand-in: types with its names and members) have the memory that they point into, and what
// a pool keeps free is told if the pool's own sum agrees. What contradicts itself is counted.
func TestCuPy(t *testing.T) {
	const unreadable, arrays, free, newer = 13, 9, 14, 7 // 6 arrays, 4 pointers and 3 pools
	for minor, python := range installed(t) {
		t.Run(fmt.Sprintf("CPython 3.%d", minor), func(t *testing.T) {
			p := start(t, python, []string{"PYTHONPATH=" + buildWords(t, python)}, "testdata/cupy_holders.py")
			r, err := Read(context.Background(), p.pid, Options{Keys: AllKeys})
			if err != nil || r.Refused != "" {
				t.Fatal(err, r.Refused)
			}
			p.check(t, r)
			if r.Framework != "CuPy" || len(r.Storages) != arrays+free+newer {
				t.Errorf("%d storages of %s, want %d", len(r.Storages), r.Framework, arrays+free+newer)
			}
			for i, s := range inPool(t, r, holder.FreeInCuPy, free+newer) {
				address, bytes := 0x7f0000000000+0x4000*uint64(7+i), uint64(0x4000)
				if i >= free {
					address, bytes = 0x7f3000000000+0x2000*uint64(i-free), 0x2000
				}
				if s.Address != address || s.Bytes != bytes || s.Device != 1 {
					t.Errorf("free: %+v", s)
				}
			}
			i := slices.IndexFunc(r.Storages, func(s holder.Storage) bool { return s.Address == 0x7f000000c000 })
			if s := r.Storages[max(i, 0)]; s.Tensors != 3 || s.Holder != "part" && s.Holder != "whole" && s.Holder != "reverse" {
				t.Errorf("%+v", s)
			}
			i = slices.IndexFunc(r.Storages, func(s holder.Storage) bool { return s.Holder == "plan" })
			if i < 0 || r.Storages[i].Address != 0x7f0000018000 || r.Storages[i].Class != "MemoryPointer" {
				t.Error("a pointer without an array was not found")
			}
			i = slices.IndexFunc(r.Loss, func(l loss.Counter) bool { return l.Name == "heap_tensors_unfit" })
			if r.Loss[i].Value != unreadable {
				t.Errorf("%d could not be read, want %d", r.Loss[i].Value, unreadable)
			}
		})
	}
}
