package render

// An Index numbers what an output refers to, in the order in which it is first seen.
type Index[K comparable] map[K]int

// Number returns the number of k, from 0 on, and whether k is new.
func (x Index[K]) Number(k K) (n int, fresh bool) {
	n, known := x[k]
	if !known {
		n = len(x)
		x[k] = n
	}
	return n, !known
}
