// Package sorting sorts slices of structs with little code: slices compiles a sort for each
// type of element, 10 KB for a small one.
package sorting

import (
	"cmp"
	"slices"
	"strings"
)

// Stable is slices.SortStableFunc. It sorts indexes, in a sort that all types share, and only what is
// not in order yet.
func Stable[T any](s []T, compare func(a, b T) int) {
	if slices.IsSortedFunc(s, compare) {
		return
	}
	unsorted := slices.Clone(s)
	for i, at := range indexes(len(s), func(a, b int) int { return compare(unsorted[a], unsorted[b]) }) {
		s[i] = unsorted[at]
	}
}

func indexes(n int, compare func(a, b int) int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Or(compare(a, b), cmp.Compare(a, b)) })
	return order
}

// Keys returns the keys of a map in the order of compare.
func Keys[K comparable, V any](m map[K]V, compare func(a, b K) int) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	Stable(keys, compare)
	return keys
}

// Largest returns the keys of a map, those with most of a figure first.
func Largest[V any](m map[string]V, figure func(V) int64) []string {
	return Keys(m, func(a, b string) int { return cmp.Or(cmp.Compare(figure(m[b]), figure(m[a])), strings.Compare(a, b)) })
}
