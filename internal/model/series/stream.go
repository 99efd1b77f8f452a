// Package series stores what memory was held over time: bytes by line, of which an owner says
// what each is. It takes a bounded amount of memory, and keeps every peak.
package series

import (
	"cmp"
	"math"
	"slices"
)

// A Delta is a number of bytes by which a line changed.
type Delta struct {
	Line  int32
	Bytes int64
}

// An Instant is a moment at which a Stream knows what every line holds, to the byte: its
// deltas lead there from the instant before.
type Instant struct {
	Time uint64
	By   []Delta
	last bool // of its bucket
}

// A Stream is what lines hold, at instants. At first each change is an instant. Where
// that becomes too much, two buckets of neighbouring instants become one, which has the
// instants at which a total was lowest and highest in it, and its last. The highest of the
// highest is the highest, so no peak is ever lost.
type Stream struct {
	max     int // deltas
	log     log
	changes int // in all
	// size is how many changes make a bucket, and open the last one, which is not full.
	size int
	open bucket
	// total returns the total that a line is part of, negative for none.
	total func(line int32) int

	// Scratch of reduce.
	sums    []int64 // by line
	seen    []bool
	touched []int32    // lines
	chosen  []bool     // by instant
	totals  []extremes // by total
	some    []int      // totals that the bucket changes
	by      []Delta
}

// A bucket is neighbouring instants.
type bucket struct {
	times  []uint64
	to     []int // where the deltas of each end
	deltas []Delta
}

func (b *bucket) add(time uint64, by []Delta) {
	b.times = append(b.times, time)
	b.deltas = append(b.deltas, by...)
	b.to = append(b.to, len(b.deltas))
}

func (b *bucket) instant(i int) []Delta {
	if i == 0 {
		return b.deltas[:b.to[0]]
	}
	return b.deltas[b.to[i-1]:b.to[i]]
}

func (b *bucket) empty() { b.times, b.to, b.deltas = b.times[:0], b.to[:0], b.deltas[:0] }

// New returns a Stream of so many deltas at most. total returns the number of the total that a
// line is part of, negative for none.
func New(most int, total func(line int32) int) *Stream {
	return &Stream{max: most, size: 1, total: total}
}

// Changes returns how many changes were added.
func (s *Stream) Changes() int { return s.changes }

// Bucket returns how many changes make a bucket: 1 if the Stream still has each change.
func (s *Stream) Bucket() int { return s.size }

// Add adds a change of lines at a time, no earlier than the one before. Each line is in it once.
func (s *Stream) Add(time uint64, by []Delta) {
	s.changes++
	s.open.add(time, by)
	if len(s.open.times) >= s.size {
		s.Finish()
	}
}

// Finish ends the last bucket. All yields everything that was added before.
func (s *Stream) Finish() {
	s.reduce(&s.open, &s.log)
	s.open.empty()
	for s.log.deltas > s.max && s.Halve() {
	}
}

// Halve makes one bucket of two, and reports whether there were two. It comes after Finish.
func (s *Stream) Halve() bool {
	var out log
	var pair bucket
	buckets := 0
	for x := range s.log.drain {
		pair.add(x.Time, x.By)
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

// All yields the instants, each good until the next.
func (s *Stream) All(yield func(Instant) bool) { s.log.from(0, false, yield) }

// Times yields those of the instants from a time on.
func (s *Stream) Times(from uint64, yield func(uint64)) {
	s.log.from(from, false, func(x Instant) bool {
		if x.Time >= from {
			yield(x.Time)
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
func (s *Stream) reduce(b *bucket, out *log) {
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
			p := s.total(d.Line)
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
			e.sum += d.Bytes
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
			for int(d.Line) >= len(s.sums) {
				s.sums, s.seen = append(s.sums, 0), append(s.seen, false)
			}
			if !s.seen[d.Line] {
				s.seen[d.Line] = true
				s.touched = append(s.touched, d.Line)
			}
			s.sums[d.Line] += d.Bytes
		}
		if !s.chosen[i] {
			continue
		}
		s.by = s.by[:0]
		for _, line := range s.touched {
			if s.sums[line] != 0 {
				s.by = append(s.by, Delta{line, s.sums[line]})
			}
			s.sums[line], s.seen[line] = 0, false
		}
		s.touched = s.touched[:0]
		out.add(b.times[i], s.by, i == n-1)
	}
}

// Sum adds up the deltas of each line, and puts the sums that are not 0 in the order of lines. It
// changes by.
func Sum(by []Delta) []Delta {
	if len(by) > 1 {
		slices.SortFunc(by, func(a, b Delta) int { return cmp.Compare(a.Line, b.Line) })
	}
	out := by[:0]
	for _, d := range by {
		if n := len(out); n > 0 && out[n-1].Line == d.Line {
			out[n-1].Bytes += d.Bytes
		} else {
			out = append(out, d)
		}
	}
	return slices.DeleteFunc(out, func(d Delta) bool { return d.Bytes == 0 })
}
