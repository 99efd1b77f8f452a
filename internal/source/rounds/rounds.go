// Package rounds visits the members of a changing set, a part at a time, so that a large set
// costs no more work per second than a small one.
package rounds

// A Rounds is the rest of a round. The zero value starts one.
type Rounds[T any] struct{ left []T }

// Next returns the next n elements of the round, or fewer at its end. all returns the elements of a new
// round.
func (r *Rounds[T]) Next(n int, all func() []T) []T {
	if len(r.left) == 0 {
		r.left = all()
	}
	n = min(n, len(r.left))
	part := r.left[:n]
	r.left = r.left[n:]
	return part
}
