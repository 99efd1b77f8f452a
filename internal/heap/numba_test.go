package heap

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

// Arrays of Numba (of a stand-in: classes with its names) lie in memory that has an address. What
// contradicts itself is counted.
func TestNumba(t *testing.T) {
	const unreadable, storages, waiting = 5, 6, 100
	for minor, python := range installed(t) {
		t.Run(fmt.Sprintf("CPython 3.%d", minor), func(t *testing.T) {
			p := start(t, python, []string{"PYTHONPATH=" + buildWords(t, python)}, "testdata/numba_holders.py")
			r, err := Read(context.Background(), p.pid, Options{Keys: AllKeys})
			if err != nil {
				t.Fatal(err)
			}
			p.check(t, r)
			for i, s := range inPool(t, r, holder.FreedLater, waiting) {
				if s.Address != 0x7f0000600000+4096*uint64(i) || s.Bytes != 4096 || s.Device != 1 {
					t.Errorf("freed later: %+v", s)
				}
			}
			if r.Framework != "Numba" || len(r.Storages) != storages+waiting {
				t.Errorf("%d storages of %s, want %d", len(r.Storages), r.Framework, storages)
			}
			i := slices.IndexFunc(r.Storages, func(s holder.Storage) bool { return s.Holder == "whole" })
			if i < 0 || r.Storages[i].Tensors != 2 || !slices.Equal(r.Storages[i].More, []string{"part"}) {
				t.Errorf("storages %+v", r.Storages)
			}
			if first := r.Retainers; len(first) == 0 || first[0].Holder != "batches" || first[0].Retained != 3*2800 {
				t.Errorf("%+v keep most", first)
			}
			i = slices.IndexFunc(r.Loss, func(l loss.Counter) bool { return l.Name == "heap_tensors_unfit" })
			if r.Loss[i].Value != unreadable {
				t.Errorf("%d arrays could not be read, want %d", r.Loss[i].Value, unreadable)
			}
		})
	}
}
