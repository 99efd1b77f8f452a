// Package sorting sorts slices of large structs with little code.
package sorting

import "slices"

// Stable is slices.SortStableFunc for large elements of which there are few. slices compiles a sort for
// each type of element, 15 KB for a large one. Stable sorts pointers: they share one sort.
func Stable[T any](s []T, compare func(a, b T) int) {
	order := make([]*T, len(s))
	for i := range s {
		order[i] = &s[i]
	}
	slices.SortStableFunc(order, func(a, b *T) int { return compare(*a, *b) })
	sorted := make([]T, len(s))
	for i, p := range order {
		sorted[i] = *p
	}
	copy(s, sorted)
}
