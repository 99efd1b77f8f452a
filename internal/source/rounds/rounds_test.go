package rounds

import (
	"slices"
	"testing"
)

func TestRounds(t *testing.T) {
	set := []int{1, 2, 3, 4, 5}
	asked := 0
	all := func() []int { asked++; return slices.Clone(set) }
	var r Rounds[int]
	for i, want := range [][]int{{1, 2}, {3, 4}, {5}, {6}, {}, {}, {7}} {
		switch i {
		case 3:
			set = []int{6}
		case 4:
			set = nil
		case 6:
			set = []int{7}
		}
		if got := r.Next(2, all); !slices.Equal(got, want) {
			t.Errorf("part %d is %v, want %v", i, got, want)
		}
	}
	if asked != 5 {
		t.Errorf("asked %d times, want once a round", asked)
	}
}
