// Package rounds goes through a set that changes, a part at a time: what is looked at for
// every process of a machine then takes as much when there are very many.
package rounds

// A Rounds is where it is in its round. The zero value begins one.
type Rounds[T any] struct{ left []T }

// Next returns up to n of those that are left of this round. With none left a new one
// begins, of all; its first part may be empty only if all is.
func (r *Rounds[T]) Next(n int, all func() []T) []T {
	if len(r.left) == 0 {
		r.left = all()
	}
	n = min(n, len(r.left))
	part := r.left[:n]
	r.left = r.left[n:]
	return part
}
