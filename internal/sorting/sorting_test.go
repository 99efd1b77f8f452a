package sorting

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestStable(t *testing.T) {
	type element struct{ key, place int }
	random := rand.New(rand.NewPCG(1, 2))
	for n := range 40 {
		got := make([]element, n)
		for i := range got {
			got[i] = element{key: random.IntN(5), place: i}
		}
		want := slices.Clone(got)
		compare := func(a, b element) int { return cmp.Compare(a.key, b.key) }
		slices.SortStableFunc(want, compare)
		Stable(got, compare)
		if !slices.Equal(got, want) {
			t.Errorf("%d elements: %v, want %v", n, got, want)
		}
	}
}
