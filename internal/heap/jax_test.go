package heap

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
)

// Arrays of JAX have a holder, a shape and a size, and neither an address nor a device. What
// does not say its shape or its type is counted.
func TestJAX(t *testing.T) {
	const unreadable = 6
	for minor, python := range installed(t) {
		t.Run(fmt.Sprintf("CPython 3.%d", minor), func(t *testing.T) {
			p := start(t, python, nil, "testdata/jax_holders.py")
			r, err := Read(context.Background(), p.pid, Options{Keys: AllKeys, CPU: true})
			if err != nil {
				t.Fatal(err)
			}
			if r.Refused != "" {
				t.Fatal(r.Refused)
			}
			if len(r.Storages) != len(p.said.Arrays) || r.Framework != "JAX" {
				t.Errorf("%d arrays of %s, want %d", len(r.Storages), r.Framework, len(p.said.Arrays))
			}
			for _, want := range p.said.Arrays {
				i := slices.IndexFunc(r.Storages, func(s holder.Storage) bool { return s.Holder == want.Path })
				if i < 0 {
					t.Errorf("no %s", want.Path)
					continue
				}
				if s := &r.Storages[i]; s.Bytes != want.Bytes || s.DType != want.DType || !slices.Equal(s.Shape, want.Shape) ||
					s.Address != 0 || s.Device != holder.UnknownDevice || s.Class != "ArrayImpl" {
					t.Errorf("%+v, want %+v", *s, want)
				}
			}
			if len(r.Retainers) == 0 {
				t.Fatal("no retainers")
			}
			if first := r.Retainers[0]; first.Holder != "history" || first.Retained != 45<<20 || first.Storages != 3 {
				t.Errorf("%+v keeps most", first)
			}
			for _, l := range r.Loss {
				if l.Name == "heap_tensors_unfit" && l.Value != unreadable {
					t.Errorf("%d arrays could not be read, want %d", l.Value, unreadable)
				}
			}
		})
	}
}
