package leak

import (
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// An amount is what a stack holds.
type amount struct{ bytes, objects int64 }

// A mark is a low-water mark: at least its bytes were held at the end of
// interval since and of every later one, and fewer at the end of the one before.
type mark struct {
	amount
	rise  int64 // bytes above the mark before
	since int
}

// A site is the growth of one stack: the marks above base, each higher and
// later than the one before, never more than N intervals apart. The last one is
// what is held now.
//
// The latest K+N marks are enough: if what is held falls below them, the growth that is
// left has paused for N intervals, and is over.
type site struct {
	base   amount // held before the growth began
	start  int    // the last interval before it
	folded int    // oldest marks that are only counted
	marks  []mark

	now  amount // at the end of interval seen
	seen int
}

// add counts what is held at the interval's end. Several may be of one site.
func (s *site) add(h state.SiteUsage, interval int) {
	if s.seen != interval {
		s.seen, s.now = interval, amount{}
	}
	s.now.bytes += h.Bytes
	s.now.objects += h.Objects
}

func (s *site) observe(interval int, o Options) {
	s.fall(s.now)
	if s.now.bytes <= s.top().bytes {
		return
	}
	if n := len(s.marks); n > 0 && interval-s.marks[n-1].since > o.Outlive {
		s.restart(s.marks[n-1].amount)
	}
	s.push(s.now, interval)
	if len(s.marks) > o.Intervals+o.Outlive {
		s.folded++
		s.marks = slices.Delete(s.marks, 0, 1)
	}
}

// fall lowers the marks to what is held now.
func (s *site) fall(now amount) {
	since := 0
	for n := len(s.marks); n > 0 && s.marks[n-1].bytes > now.bytes; n-- {
		since = s.marks[n-1].since
		s.marks = s.marks[:n-1]
	}
	switch {
	case now.bytes <= s.base.bytes:
		s.restart(now)
	case since > 0 && now.bytes > s.top().bytes:
		s.push(now, since)
	}
}

func (s *site) restart(base amount) {
	s.base, s.folded, s.marks = base, 0, s.marks[:0]
}

func (s *site) push(a amount, since int) {
	if s.rises() == 0 {
		s.start = since - 1
	}
	s.marks = append(s.marks, mark{amount: a, rise: a.bytes - s.top().bytes, since: since})
}

// top returns the highest mark, base if there is none.
func (s *site) top() amount {
	if n := len(s.marks); n > 0 {
		return s.marks[n-1].amount
	}
	return s.base
}

// rises returns through how many intervals s grew.
func (s *site) rises() int { return s.folded + len(s.marks) }

// growing reports whether s fulfils the first condition of a leak after so
// many intervals.
func (s *site) growing(intervals int, o Options) bool {
	n := len(s.marks)
	return s.rises() >= o.Intervals && intervals-s.marks[n-1].since < o.Outlive
}

// median returns the middle one of the latest rises, in bytes.
func (s *site) median() int64 {
	var rises []int64
	for _, m := range s.marks {
		rises = append(rises, m.rise)
	}
	slices.Sort(rises)
	return rises[len(rises)/2]
}
