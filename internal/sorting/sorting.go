// Package sorting sorts slices of large structs with little code.
package sorting

import (
	"cmp"
	"slices"
)

// Stable is slices.SortStableFunc for large elements. slices compiles a sort for each type of
// element, 15 KB for a large one. Stable sorts indexes: they share one sort.
func Stable[T any](s []T, compare func(a, b T) int) {
	order := make([]int, len(s))
	for i := range s {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Or(compare(s[a], s[b]), cmp.Compare(a, b)) })
	sorted := make([]T, len(s))
	for i, at := range order {
		sorted[i] = s[at]
	}
	copy(s, sorted)
}
