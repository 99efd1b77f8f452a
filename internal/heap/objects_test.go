package heap

import (
	"math/rand/v2"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

// Objects are found by their addresses, in order, whether they lie densely or alone, and nothing else is.
func TestObjectsFind(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	r := &objectReader{arena: &arena{}, lost: loss.New(losses)}
	defer r.arena.release()
	var found []seen
	want := map[uint64]seen{}
	for range 20000 {
		at := random.Uint64N(1<<22) &^ 7
		if random.IntN(4) == 0 {
			at = random.Uint64N(1<<47) &^ 7
		}
		// What comes later is newer.
		one := seen{address: at, class: random.Uint32N(100), count: random.Uint32()}
		found, want[at] = append(found, one), one
	}
	gone := seen{address: 1 << 30, class: noType}
	o := r.newObjects(append(found, gone))
	if len(o.address) != len(want) {
		t.Fatalf("%d objects, want %d", len(o.address), len(want))
	}
	for i, at := range o.address {
		if i > 0 && at <= o.address[i-1] {
			t.Fatalf("%x follows %x", at, o.address[i-1])
		}
		if v, ok := o.find(at); !ok || int(v) != i {
			t.Errorf("find(%x) = %d, %v, want %d", at, v, ok, i)
		}
		if got := (seen{at, o.class[i], o.count[i]}); got != want[at] {
			t.Errorf("%+v, want %+v", got, want[at])
		}
		for _, beside := range []uint64{at - 8, at + 8, at + 1, at ^ regionSize, at ^ 1<<46} {
			_, is := want[beside]
			if _, ok := o.find(beside); ok != is {
				t.Errorf("find(%x) = %v, want %v", beside, ok, is)
			}
		}
	}
	if _, ok := o.find(gone.address); ok {
		t.Error("an object is found that was gone when it was read")
	}
}
