package leak

import (
	"cmp"
	"iter"
	"math/bits"
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// A Report says which stacks leak, at one moment.
type Report struct {
	Options   Options   // those of the Detector, defaults filled in
	Target    string    // what was traced
	Intervals int       // observed
	Ended     time.Time // the last of them
	Stacks    []Stack   // those that leak, the largest growth first

	// Segments is whether PyTorch's segments are whole, because the trace has no tensors: what
	// leaks inside of them does not show.
	Segments bool

	// GivenBack stacks grew to the end of the last interval, and gave that
	// back after it: a program that ends frees what it had collected.
	GivenBack int
	// Ageless stacks grew, and the trace has no row for any allocation of
	// theirs: it reached its limit.
	Ageless int
	// Unwatched is the most stacks at once that MaxSites left out.
	Unwatched int
}

// TooShort reports whether too few intervals were observed to say anything.
func (r *Report) TooShort() bool { return r.Intervals < r.Options.Enough() }

// A Stack is a call stack that leaks. Figures are of the report's moment.
type Stack struct {
	Site ledger.SiteKey
	// Sample is the first sample of the stack; bytes and objects of further
	// ones with equal labels are added to it.
	Sample snapshot.Sample
	// Growth is by how much the low-water mark rose, and GrowthObjects how
	// many more objects were held then: fewer, when larger ones took over.
	Growth, GrowthObjects int64
	Rises                 int   // intervals through which it grew
	Span                  int   // intervals since the growth began
	MedianRise            int64 // bytes, of the latest such intervals
	// OldBytes and OldObjects have outlived N intervals.
	OldBytes, OldObjects int64
	Ages                 []Age // youngest first, without empty ones at the end
	Holder               Holder
	// Freed: most of it was freed before the end of the recording.
	Freed bool
}

// Later says what is known of the stacks at a later moment: whether less than half of their memory was
// held, and who holds it. sites are the call sites of its samples, in order, as far as they have one.
func (r *Report) Later(later *snapshot.Snapshot, sites iter.Seq[ledger.SiteKey]) {
	held := make(map[ledger.SiteKey]int64)
	var bySample []ledger.SiteKey
	for k := range sites {
		held[k] += later.Samples[len(bySample)].InuseBytes
		bySample = append(bySample, k)
	}
	for i := range r.Stacks {
		x := &r.Stacks[i]
		if x.Freed = held[x.Site] < x.Sample.InuseBytes/2; x.Freed {
			continue
		}
		c, began := candidate{Stack: *x}, r.Ended.Add(-time.Duration(x.Span)*r.Options.Interval)
		for j := range later.Live {
			row := &later.Live[j]
			if row.Sample >= 0 && row.Sample < len(bySample) && bySample[row.Sample] == x.Site && row.Time.After(began) && !row.Time.After(r.Ended) {
				c.hold(later.Samples[row.Sample].Holder, row.Size)
			}
		}
		if h := c.holder(later); h.Name != "" {
			x.Holder = h
		}
	}
}

// A candidate is a stack that grew, while its allocations are looked at.
type candidate struct {
	Stack
	site    site
	rows    int
	cohorts map[int]struct{} // intervals of growth whose allocations are held
	outlive bool             // one of them is old enough
	holders map[string]amount
}

// Report returns what leaks, given the state of now, which need not be the end
// of an interval: growth since the last one is not counted, memory given back
// is. s must have Live rows; sites are the call sites of its samples, in order,
// as far as they have one. The Detector is not changed.
func (d *Detector) Report(s *snapshot.Snapshot, sites iter.Seq[ledger.SiteKey]) *Report {
	r := &Report{Options: d.opts, Target: s.Meta.Target, Intervals: d.intervals, Ended: d.last, Unwatched: d.unwatched}
	r.Segments = wholeSegments(s)
	candidates, bySample := d.candidates(s, sites, r)
	now := moment(s)
	for i := range s.Live {
		row := &s.Live[i]
		if row.Sample < 0 || row.Sample >= len(bySample) || bySample[row.Sample] == nil {
			continue
		}
		c := bySample[row.Sample]
		c.rows++
		age := min(max(now.Sub(row.Time), 0), s.Meta.Duration)
		c.age(age, row.Size, d.opts.Interval)
		if age >= time.Duration(d.opts.Outlive)*d.opts.Interval {
			c.OldBytes += row.Size
			c.OldObjects++
		}
		// Whole intervals between the allocation and the end of the last one.
		before := d.last.Sub(row.Time)
		if n := int(before / d.opts.Interval); before >= 0 && n < c.Span {
			c.cohorts[n] = struct{}{}
			c.hold(s.Samples[row.Sample].Holder, row.Size)
			c.outlive = c.outlive || n >= d.opts.Outlive
		}
	}
	for _, c := range candidates {
		switch {
		case c.rows == 0:
			r.Ageless++
		case c.outlive && len(c.cohorts) >= d.opts.Intervals:
			c.Holder = c.holder(s)
			r.Stacks = append(r.Stacks, c.Stack)
		}
	}
	sorting.Stable(r.Stacks, func(a, b Stack) int { return cmp.Compare(b.Growth, a.Growth) })
	return r
}

// wholeSegments returns whether s has memory of PyTorch's, and no tensors in it.
func wholeSegments(s *snapshot.Snapshot) bool {
	pytorch := false
	for i := range s.Samples {
		switch l := &s.Samples[i].Labels; {
		case l.Kind == snapshot.Tensor || l.Kind == snapshot.Cached:
			return false
		case l.Owner == "pytorch":
			pytorch = true
		}
	}
	return pytorch
}

// candidates returns the stacks that fulfil the first condition, in the order
// of s, and that of each sample, nil for none.
func (d *Detector) candidates(s *snapshot.Snapshot, sites iter.Seq[ledger.SiteKey], r *Report) (found []*candidate, bySample []*candidate) {
	bySample = make([]*candidate, len(s.Samples))
	byKey := make(map[ledger.SiteKey]*candidate)
	i := -1
	for k := range sites {
		i++
		sample := &s.Samples[i]
		st := d.sites[k]
		if st == nil || !st.growing(d.intervals, d.opts) {
			continue
		}
		c := byKey[k]
		if c == nil {
			c = &candidate{site: *st, cohorts: make(map[int]struct{})}
			c.site.marks = slices.Clone(st.marks)
			c.Site, c.Sample = k, *sample
			c.Sample.Values = snapshot.Values{}
			byKey[k] = c
			found = append(found, c)
		}
		c.Sample.Values.Add(&sample.Values)
		bySample[i] = c
	}
	for k, st := range d.sites {
		if byKey[k] == nil && st.growing(d.intervals, d.opts) {
			r.GivenBack++ // its process was forgotten
		}
	}
	found = slices.DeleteFunc(found, func(c *candidate) bool {
		st := &c.site
		st.fall(amount{c.Sample.InuseBytes, c.Sample.InuseObjects})
		if !st.growing(d.intervals, d.opts) {
			r.GivenBack++
			return true
		}
		c.Growth = st.top().bytes - st.base.bytes
		c.GrowthObjects = st.top().objects - st.base.objects
		c.Rises, c.Span, c.MedianRise = st.rises(), d.intervals-st.start, st.median()
		return false
	})
	return found, bySample
}

// An Age counts the allocations of a stack whose age is at least From and less
// than To. The first is [0, interval), then [1, 2), [2, 4), [4, 8), ...
// intervals.
type Age struct {
	From, To       time.Duration
	Bytes, Objects int64
}

// age counts one allocation.
func (s *Stack) age(age time.Duration, size int64, interval time.Duration) {
	n := bits.Len64(uint64(age / interval))
	for i := len(s.Ages); i <= n; i++ {
		a := Age{To: interval << i}
		if i > 0 {
			a.From = interval << (i - 1)
		}
		s.Ages = append(s.Ages, a)
	}
	s.Ages[n].Bytes += size
	s.Ages[n].Objects++
}
