package timeline

import "math"

// A delta is a number of bytes by which a leaf changed.
type delta struct {
	leaf  int32
	bytes int64
}

// An instant is a moment at which the page knows what every leaf holds, to the byte:
// its deltas lead there from the instant before.
type instant struct {
	time uint64
	by   []delta
	last bool // of its bucket
}

// A stream is what leaves hold, at instants. At first each change is an instant. Where
// that becomes too much, two buckets of neighbouring instants become one, which has the
// instants at which a total was lowest and highest in it, and its last. The highest of the
// highest is the highest, so no peak is ever lost.
type stream struct {
	max     int // deltas
	log     log
	changes int // in all
	// size is how many changes make a bucket, and open the last one, which is not full.
	size int
	open bucket
	// total returns the total that a leaf is part of, negative for none.
	total func(leaf int32) int

	// Scratch of reduce.
	sums    []int64 // by leaf
	seen    []bool
	touched []int32    // leaves
	chosen  []bool     // by instant
	totals  []extremes // by total
	some    []int      // totals that the bucket changes
	by      []delta
}

// A bucket is neighbouring instants.
type bucket struct {
	times  []uint64
	to     []int // where the deltas of each end
	deltas []delta
}

func (b *bucket) add(time uint64, by []delta) {
	b.times = append(b.times, time)
	b.deltas = append(b.deltas, by...)
	b.to = append(b.to, len(b.deltas))
}

func (b *bucket) instant(i int) []delta {
	if i == 0 {
		return b.deltas[:b.to[0]]
	}
	return b.deltas[b.to[i-1]:b.to[i]]
}

func (b *bucket) empty() { b.times, b.to, b.deltas = b.times[:0], b.to[:0], b.deltas[:0] }

func newStream(most int, total func(int32) int) *stream {
	return &stream{max: most, size: 1, total: total}
}

// add adds a change of leaves at a time, no earlier than the one before.
func (s *stream) add(time uint64, by []delta) {
	s.changes++
	s.open.add(time, by)
	if len(s.open.times) >= s.size {
		s.finish()
	}
}

// finish ends the last bucket.
func (s *stream) finish() {
	s.reduce(&s.open, &s.log)
	s.open.empty()
	for s.log.deltas > s.max && s.halve() {
	}
}

// halve makes one bucket of two, and reports whether there were two. No bucket is open.
func (s *stream) halve() bool {
	var out log
	var pair bucket
	buckets := 0
	for x := range s.log.drain {
		pair.add(x.time, x.by)
		if x.last {
			if buckets++; buckets%2 == 0 {
				s.reduce(&pair, &out)
				pair.empty()
			}
		}
	}
	s.reduce(&pair, &out)
	s.log = out
	s.size *= 2
	return buckets > 1
}

// times yields those of the instants from a time on.
func (s *stream) times(from uint64, yield func(uint64)) {
	s.log.from(from, false, func(x instant) bool {
		if x.time >= from {
			yield(x.time)
		}
		return true
	})
	for _, t := range s.open.times {
		if t >= from {
			yield(t)
		}
	}
}

// extremes are where a total is lowest and highest.
type extremes struct {
	sum, low, high int64
	atLow, atHigh  int
	some, touched  bool
}

// reduce adds a bucket to out, without most of its instants.
func (s *stream) reduce(b *bucket, out *log) {
	n := len(b.times)
	if n <= 1 {
		if n == 1 {
			out.add(b.times[0], b.deltas, true)
		}
		return
	}
	s.chosen = append(s.chosen[:0], make([]bool, n)...)
	s.chosen[n-1] = true
	s.some = s.some[:0]
	for i := range b.times {
		for _, d := range b.instant(i) {
			p := s.total(d.leaf)
			if p < 0 {
				continue
			}
			for p >= len(s.totals) {
				s.totals = append(s.totals, extremes{})
			}
			e := &s.totals[p]
			if !e.some {
				*e = extremes{some: true, low: math.MaxInt64, high: math.MinInt64}
				s.some = append(s.some, p)
			}
			e.sum += d.bytes
			e.touched = true
		}
		for _, p := range s.some {
			e := &s.totals[p]
			if !e.touched {
				continue
			}
			e.touched = false
			if e.sum < e.low {
				e.low, e.atLow = e.sum, i
			}
			if e.sum >= e.high { // by then, memory from the driver may be handed out
				e.high, e.atHigh = e.sum, i
			}
		}
	}
	for _, p := range s.some {
		e := &s.totals[p]
		s.chosen[e.atLow], s.chosen[e.atHigh] = true, true
		e.some = false
	}
	for i := range b.times {
		for _, d := range b.instant(i) {
			for int(d.leaf) >= len(s.sums) {
				s.sums, s.seen = append(s.sums, 0), append(s.seen, false)
			}
			if !s.seen[d.leaf] {
				s.seen[d.leaf] = true
				s.touched = append(s.touched, d.leaf)
			}
			s.sums[d.leaf] += d.bytes
		}
		if !s.chosen[i] {
			continue
		}
		s.by = s.by[:0]
		for _, leaf := range s.touched {
			if s.sums[leaf] != 0 {
				s.by = append(s.by, delta{leaf, s.sums[leaf]})
			}
			s.sums[leaf], s.seen[leaf] = 0, false
		}
		s.touched = s.touched[:0]
		out.add(b.times[i], s.by, i == n-1)
	}
}
