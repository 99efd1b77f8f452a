package ledger

// slots are values that keep their index for as long as they are there.
type slots[T any] struct {
	all  []T
	free []uint32
}

// put adds x in a free slot, or behind the last one if there are fewer than max.
func (s *slots[T]) put(max int, x T) (i uint32, ok bool) {
	if n := len(s.free); n > 0 {
		i, s.free = s.free[n-1], s.free[:n-1]
		s.all[i] = x
		return i, true
	}
	if len(s.all) >= max {
		return 0, false
	}
	s.all = append(s.all, x)
	return uint32(len(s.all) - 1), true
}

// release makes slot i free.
func (s *slots[T]) release(i uint32) { s.free = append(s.free, i) }
