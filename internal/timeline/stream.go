package timeline

import "math"

// A delta is by how many bytes a leaf changed.
type delta struct {
	leaf  int32
	bytes int64
}

// An instant is a moment at which the page knows what every leaf holds, to the byte:
// its deltas lead there from the instant before.
type instant struct {
	time uint64
	to   int  // where its deltas end
	last bool // of its bucket
}

// A stream is what leaves hold, at instants. At first each change is an instant. Where
// that becomes too much, two buckets of neighbouring instants become one, which keeps the
// instants at which the total of a place was lowest and highest in it, and its last. The
// highest of the highest is the highest, so no peak is ever lost.
type stream struct {
	max      int // deltas to keep
	instants []instant
	deltas   []delta
	changes  int // all that there were
	// size is how many changes make a bucket, filled how many the last bucket has, and
	// first its first instant.
	size, filled, first int
	// place returns the place in whose total a leaf is, negative for none.
	place func(leaf int32) int

	// Scratch of reduce.
	sums    []int64 // by leaf
	seen    []bool
	touched []int32    // leaves
	keep    []bool     // by instant
	totals  []extremes // by place
	places  []int
}

func newStream(most int, place func(int32) int) *stream {
	return &stream{max: most, size: 1, place: place}
}

// add takes a change: what leaves became more by at a time, no earlier than the one before.
func (s *stream) add(time uint64, by []delta) {
	s.changes++
	s.deltas = append(s.deltas, by...)
	if s.filled++; s.filled == 1 {
		s.first = len(s.instants)
	}
	full := s.filled >= s.size
	s.instants = append(s.instants, instant{time, len(s.deltas), full})
	if full {
		s.close()
	}
}

// close ends the last bucket.
func (s *stream) close() {
	if s.filled > 1 {
		// What is kept is never longer than what it was of.
		out := &stream{instants: s.instants[:s.first], deltas: s.deltas[:s.begin(s.first)]}
		s.reduce(s.first, len(s.instants), out)
		s.instants, s.deltas = out.instants, out.deltas
	}
	s.filled = 0
	for len(s.deltas) > s.max && s.halve() {
	}
}

// finish ends the last bucket, if it is open.
func (s *stream) finish() {
	if s.filled > 0 {
		s.instants[len(s.instants)-1].last = true
		s.close()
	}
}

// halve makes one bucket of two, and tells whether there were two.
func (s *stream) halve() bool {
	out := &stream{instants: s.instants[:0], deltas: s.deltas[:0]}
	buckets, from := 0, 0
	for i := range s.instants {
		if s.instants[i].last || i == len(s.instants)-1 {
			if buckets++; buckets%2 == 0 || i == len(s.instants)-1 {
				s.reduce(from, i+1, out)
				from = i + 1
			}
		}
	}
	s.instants, s.deltas = out.instants, out.deltas
	s.size *= 2
	return buckets > 1
}

// begin is where the deltas of the instant i begin.
func (s *stream) begin(i int) int {
	if i == 0 {
		return 0
	}
	return s.instants[i-1].to
}

// extremes are where a total is lowest and highest.
type extremes struct {
	sum, low, high int64
	atLow, atHigh  int
	some, touched  bool
}

// reduce adds the instants [from, to) to out as one bucket. out may be what comes before
// them, in place.
func (s *stream) reduce(from, to int, out *stream) {
	s.keep = append(s.keep[:0], make([]bool, to-from)...)
	s.keep[to-1-from] = true
	s.places = s.places[:0]
	at := s.begin(from)
	for i := from; i < to; i++ {
		for _, d := range s.deltas[at:s.instants[i].to] {
			p := s.place(d.leaf)
			if p < 0 {
				continue
			}
			for p >= len(s.totals) {
				s.totals = append(s.totals, extremes{})
			}
			e := &s.totals[p]
			if !e.some {
				*e = extremes{some: true, low: math.MaxInt64, high: math.MinInt64}
				s.places = append(s.places, p)
			}
			e.sum += d.bytes
			e.touched = true
		}
		at = s.instants[i].to
		for _, p := range s.places {
			e := &s.totals[p]
			if !e.touched {
				continue
			}
			e.touched = false
			if e.sum < e.low {
				e.low, e.atLow = e.sum, i
			}
			if e.sum >= e.high { // what was taken may be handed out by then
				e.high, e.atHigh = e.sum, i
			}
		}
	}
	for _, p := range s.places {
		e := &s.totals[p]
		s.keep[e.atLow-from], s.keep[e.atHigh-from] = true, true
		e.some = false
	}
	at = s.begin(from)
	for i := from; i < to; i++ {
		x := s.instants[i]
		for _, d := range s.deltas[at:x.to] {
			for int(d.leaf) >= len(s.sums) {
				s.sums, s.seen = append(s.sums, 0), append(s.seen, false)
			}
			if !s.seen[d.leaf] {
				s.seen[d.leaf] = true
				s.touched = append(s.touched, d.leaf)
			}
			s.sums[d.leaf] += d.bytes
		}
		at = x.to
		if !s.keep[i-from] {
			continue
		}
		for _, leaf := range s.touched {
			if s.sums[leaf] != 0 {
				out.deltas = append(out.deltas, delta{leaf, s.sums[leaf]})
			}
			s.sums[leaf], s.seen[leaf] = 0, false
		}
		s.touched = s.touched[:0]
		out.instants = append(out.instants, instant{x.time, len(out.deltas), i == to-1})
	}
}
