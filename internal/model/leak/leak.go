// Package leak finds call stacks whose memory grows and is never given back.
//
// A trace is cut into equal intervals. The low-water mark of a stack at the end of an
// interval is the least that it held then and at the end of any later interval: what it
// never gave back since. The stack grew through an interval if its mark rose. It leaks if:
//
//   - it grew through at least K intervals, with never N in a row between them or after
//     them without growth, and
//   - it still holds allocations from at least K of the intervals since that growth began,
//     and one of these has outlived N intervals.
package leak

// Why marks: the value at one moment would count every spike as growth and every dip as its
// end; a mark falls again when a spike is over. When a stack gains at least L bytes an
// interval for good, and up to A more come and go, its mark stands still for at most A/L
// intervals: it is found for certain if A < N*L, after at most (N+1)*K intervals.
//
// Why the second condition: a low-water mark of all moments, not only of the ends of
// intervals, would have to visit every event. An allocation that is still held was held all
// the time, so it serves instead. It also excludes a load that grows while every allocation
// is brief, as the first condition excludes a cache of constant size whose entries change.
//
// A cache that still fills, or a buffer that is emptied less often than every K intervals,
// cannot be told from a leak until it has stopped growing for N intervals.

import (
	"cmp"
	"iter"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// Options configure a Detector. Zero means the default; nothing may be negative.
type Options struct {
	Interval  time.Duration // length of each interval, default 10 s
	Steps     int           // training steps in each, about, 0 if that is not known; for who reads the Report
	Intervals int           // K: through how many a stack must grow, default 5
	Outlive   int           // N: how many an allocation must outlive, default 3
	MaxSites  int           // stacks watched at once, default 65,536
}

// The defaults of Options.
const (
	DefaultInterval  = 10 * time.Second
	defaultIntervals = 5
	defaultOutlive   = 3
	defaultMaxSites  = 1 << 16
)

func (o Options) withDefaults() Options {
	return Options{
		Steps:     o.Steps,
		Interval:  cmp.Or(o.Interval, DefaultInterval),
		Intervals: cmp.Or(o.Intervals, defaultIntervals),
		Outlive:   cmp.Or(o.Outlive, defaultOutlive),
		MaxSites:  cmp.Or(o.MaxSites, defaultMaxSites),
	}
}

// Enough is the number of intervals before which nothing can be said.
func (o Options) Enough() int { return max(o.Intervals, o.Outlive+1) }

// A Detector watches every stack that holds memory. It has at most K+N marks for each, and
// no reference to the state that it sees. It is for one goroutine.
type Detector struct {
	opts      Options
	sites     map[ledger.SiteKey]*site
	intervals int       // that have ended
	last      time.Time // when the last one ended
	unwatched int       // most stacks at once beyond MaxSites
}

// New returns a Detector that has seen no interval.
func New(o Options) *Detector {
	return &Detector{opts: o.withDefaults(), sites: make(map[ledger.SiteKey]*site)}
}

// Observe adds what every call site holds at the end of the next interval.
// Sites that hold nothing may be left out. Intervals that could not be observed
// in time count as one.
func (d *Detector) Observe(now time.Time, held iter.Seq[state.SiteUsage]) {
	d.intervals++
	d.last = now
	unwatched := 0
	for h := range held {
		if h.Bytes <= 0 {
			continue
		}
		st := d.sites[h.Site]
		if st == nil {
			if len(d.sites) >= d.opts.MaxSites {
				unwatched++
				continue
			}
			st = new(site)
			d.sites[h.Site] = st
		}
		st.add(h, d.intervals)
	}
	for k, st := range d.sites {
		switch {
		case st.seen != d.intervals:
			delete(d.sites, k) // it holds nothing, as one never seen
		case len(st.marks) == 0 && st.base == (amount{}) && d.unwatched > 0:
			st.base = st.now // what it held before may have been unwatched
		default:
			st.observe(d.intervals, d.opts)
		}
	}
	d.unwatched = max(d.unwatched, unwatched)
}

// Growing returns the call sites that fulfil the first condition, those with the largest
// growth, n at most. A Report needs the live allocations of these alone.
func (d *Detector) Growing(n int) (out []ledger.SiteKey) {
	growth := map[ledger.SiteKey]int64{}
	for k, st := range d.sites {
		if st.growing(d.intervals, d.opts) {
			growth[k] = st.top().bytes - st.base.bytes
			out = append(out, k)
		}
	}
	sorting.Stable(out, func(a, b ledger.SiteKey) int { return cmp.Compare(growth[b], growth[a]) })
	return out[:min(n, len(out))]
}

// moment returns when s was taken.
func moment(s *snapshot.Snapshot) time.Time { return s.Meta.Start.Add(s.Meta.Duration) }
