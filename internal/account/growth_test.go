package account

import (
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/ledger"
)

// Growth goes under the one suspect before it, and memory given back is taken
// from the latest growths.
func TestGrowth(t *testing.T) {
	load, limit := ledger.SiteKey{API: 1, Stack: 10}, ledger.SiteKey{API: 2, Stack: 20}
	one := func(stack uint64) *suspects {
		if stack == 10 {
			return &suspects{site: load}
		}
		return &suspects{site: limit}
	}
	type step struct {
		bytes int64
		s     *suspects
	}
	for _, c := range []struct {
		name  string
		steps []step
		want  map[uint64]int64 // by stack
	}{
		{"nothing suspected", []step{{100, nil}}, nil},
		{"one call site", []step{{100, one(10)}}, map[uint64]int64{10: 100}},
		{"again", []step{{100, one(10)}, {50, one(10)}}, map[uint64]int64{10: 150}},
		{"two in one reading", []step{{100, &suspects{site: load, mixed: true}}}, nil},
		{"two in turn", []step{{100, one(10)}, {7, one(20)}}, map[uint64]int64{10: 100, 20: 7}},
		{"part given back", []step{{100, one(10)}, {-30, nil}}, map[uint64]int64{10: 70}},
		{"latest first", []step{{100, one(10)}, {7, one(20)}, {-10, nil}}, map[uint64]int64{10: 97}},
		{"more than was seen", []step{{100, one(10)}, {-1000, nil}}, nil},
		{"no growth", []step{{0, one(10)}}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var a account
			var sum int64
			for _, s := range c.steps {
				a.grew(s.bytes, s.s)
			}
			got := map[uint64]int64{}
			for _, g := range a.growths {
				got[g.Site.Stack] += g.Bytes
			}
			for stack, want := range c.want {
				sum += want
				if got[stack] != want {
					t.Errorf("stack %d: %d bytes, want %d", stack, got[stack], want)
				}
			}
			if len(got) != len(c.want) || a.explained() != sum {
				t.Errorf("got %v, explained %d; want %v", got, a.explained(), c.want)
			}
		})
	}
}
