package record

// placeSet remembers which places a writer has defined: of the newest ids, at
// most placeWindow. A place with an older id is defined each time.
type placeSet struct {
	bits    []uint64
	floor   uint64 // id of the first bit, a multiple of 64
	highest uint64
}

// add puts an id into the set and reports whether it was not there.
func (s *placeSet) add(id uint64) bool {
	if id < s.floor {
		return true
	}
	s.highest = max(s.highest, id)
	if id-s.floor >= placeWindow {
		s.slide(id)
	}
	i := (id - s.floor) / 64
	for uint64(len(s.bits)) <= i {
		s.bits = append(s.bits, 0)
	}
	bit := uint64(1) << (id % 64)
	had := s.bits[i]&bit != 0
	s.bits[i] |= bit
	return !had
}

// slide moves the window so that id is in the middle of it.
func (s *placeSet) slide(id uint64) {
	floor := (id - placeWindow/2) &^ 63
	if by := (floor - s.floor) / 64; by < uint64(len(s.bits)) {
		s.bits = s.bits[:copy(s.bits, s.bits[by:])]
	} else {
		s.bits = s.bits[:0]
	}
	s.floor = floor
}

// reset empties the set.
func (s *placeSet) reset() {
	s.bits = s.bits[:0]
	s.floor = 0
	if s.highest >= placeWindow/2 {
		s.floor = (s.highest - placeWindow/2) &^ 63
	}
}
