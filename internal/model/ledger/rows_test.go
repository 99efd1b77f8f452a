package ledger

import (
	"maps"
	"math/rand/v2"
	"testing"
)

// A rowTable is a map, whatever is put into it and removed, and in whichever order.
func TestRowTable(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var table rowTable
	want := map[uint64]row{}
	compare := func() {
		t.Helper()
		if got := maps.Collect(table.all); !maps.Equal(got, want) || table.n != len(want) {
			t.Fatalf("%d rows, %d of them different addresses, want %d", table.n, len(got), len(want))
		}
	}
	for _, most := range []int{0, 1, 12, 13, 511, 512, 513, 5000, 300, 20, 0} {
		for step := 0; step < 3000 || len(want) != most; step++ {
			addr := r.Uint64N(10_000) << 9
			if more := len(want) < most; more || len(want) == most && r.IntN(2) == 0 {
				x := row{r.Uint64(), r.Uint64(), r.Uint32(), r.Uint32(), r.Uint32()}
				table.put(addr, &x)
				want[addr] = x
			} else if len(want) > most+10 {
				for addr = range want {
					break
				}
			}
			if len(want) > most || r.IntN(4) == 0 {
				table.remove(addr)
				delete(want, addr)
			}
			addr = r.Uint64N(10_000) << 9
			got, ok := table.get(addr)
			if x, there := want[addr]; ok != there || got != x {
				t.Fatalf("at %#x is %+v, %v, want %+v, %v", addr, got, ok, x, there)
			}
		}
		compare()
	}
	if len(table.index) > 16 || len(table.chunks) > 1 {
		t.Errorf("an empty table keeps an index of %d and %d chunks", len(table.index), len(table.chunks))
	}
	for i := range uint64(5000) {
		table.put(i, &row{size: i})
	}
	for addr := range table.all {
		if addr%3 == 0 {
			table.remove(addr)
		}
	}
	if table.n != 3333 {
		t.Errorf("%d rows are left of 5000 without a third", table.n)
	}
	for addr, x := range table.all {
		if addr%3 == 0 || x.size != addr {
			t.Errorf("at %d is %+v", addr, x)
		}
	}
}

// BenchmarkRowTable replaces one of a number of rows by another.
func BenchmarkRowTable(b *testing.B) {
	for _, n := range []uint64{100, 2000, 1_000_000} {
		b.Run("", func(b *testing.B) {
			var table rowTable
			for i := range n {
				table.put(i<<9, &row{size: i})
			}
			for i := n; b.Loop(); i++ {
				table.put(i<<9, &row{size: i})
				table.remove((i - n) << 9)
			}
		})
	}
}
