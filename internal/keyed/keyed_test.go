package keyed

import "testing"

// What a key got once it keeps.
func TestValuesStay(t *testing.T) {
	counts, words := map[string]*int{}, map[string]map[int]bool{}
	for n := range 3 {
		*At(counts, "a")++
		Map(words, "a")[n] = true
	}
	*At(counts, "b")--
	if *counts["a"] != 3 || *counts["b"] != -1 || len(counts) != 2 || len(words["a"]) != 3 || len(words) != 1 {
		t.Errorf("%d, %d of %d, %v", *counts["a"], *counts["b"], len(counts), words)
	}
}
