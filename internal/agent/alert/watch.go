package alert

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// An Alert says that a rule became true of a subject, or that it is so no more.
type Alert struct {
	Rule     string    `json:"rule"`
	Resolved bool      `json:"resolved"`
	Subject  Subject   `json:"subject"`
	Time     time.Time `json:"time"`
	// Value is in bytes, of loss a number; of growth it is by how much it grew. Limit is the
	// rule's, Whole what a percentage is of, 0 for none.
	Value int64 `json:"value"`
	Limit int64 `json:"limit"`
	Whole int64 `json:"whole,omitempty"`
	// Text is all that in one line, for people.
	Text string `json:"text"`
}

const (
	// maxSubjects bounds what is known of the subjects of one rule, maxSamples what of each.
	maxSubjects = 1 << 13
	maxSamples  = 32
	// quiet is for how long nothing fails for want of memory until it is over.
	quiet = 10 * time.Minute
	// margin is the part of a limit by which it must be passed backwards.
	margin = 20
)

// A Watch knows of what its rules are true. It is pure, and for one goroutine.
type Watch struct {
	rules []*watched
	last  int64 // of failures for want of memory: the latest number that was looked at
	lost  *loss.Set
}

var causes loss.Causes

var (
	lossSubjects = causes.Add("alert_subjects_full", "times that a rule did not look at a process, an owner or the like because there were too many")
	lossFailures = causes.Add("alert_failures_missed", "failures for want of memory that no rule looked at because too many came at once")
)

// A watched is a rule with what is known of its subjects.
type watched struct {
	Rule
	subjects map[Subject]*condition
}

// A condition is what is known of a subject.
type condition struct {
	firing  bool
	pending bool          // it is so, since since
	since   time.Duration // for oom: when it was so last
	samples []sample
	seen    bool // now
	last    Alert
}

type sample struct {
	at time.Duration
	is int64
}

// NewWatch returns a Watch of rules that are true of nothing yet.
func NewWatch(rules []Rule) *Watch {
	w := &Watch{lost: loss.New(causes)}
	w.Change(rules)
	return w
}

// Change makes rules those of w. What is known of one that w has already stays; a new one
// tells of no failure that was looked at before.
func (w *Watch) Change(rules []Rule) {
	old := w.rules
	w.rules = nil
	for _, r := range rules {
		if i := slices.IndexFunc(old, func(x *watched) bool { return x.Rule == r }); i >= 0 {
			w.rules = append(w.rules, old[i])
			old = slices.Delete(slices.Clone(old), i, i+1)
		} else {
			w.rules = append(w.rules, &watched{Rule: r, subjects: map[Subject]*condition{}})
		}
	}
}

// Loss returns every cause of loss.
func (w *Watch) Loss() []loss.Counter { return w.lost.Counters() }

// Firing returns what is true as of the last Observe.
func (w *Watch) Firing() (out []Alert) {
	for _, r := range w.rules {
		for _, s := range slices.SortedFunc(maps.Keys(r.subjects), compare) {
			if c := r.subjects[s]; c.firing {
				out = append(out, c.last)
			}
		}
	}
	return out
}

// Observe takes totals of a moment, so long after any other, and returns what became true,
// and what is so no more.
func (w *Watch) Observe(at time.Duration, t *state.Totals) (out []Alert) {
	now := t.Meta.Start.Add(t.Meta.Duration)
	for _, r := range w.rules {
		for _, c := range r.subjects {
			c.seen = false
		}
		if r.what == nil {
			out = append(out, w.failures(r, at, t)...)
			continue
		}
		for _, m := range r.what.measures(t) {
			c := w.of(r, m.Subject)
			if c == nil {
				continue
			}
			if a, tells := r.observe(c, at, m); tells {
				a.Rule, a.Time = r.String(), now
				c.last = a
				out = append(out, a)
			}
		}
		out = append(out, r.gone(now)...)
	}
	if n := len(t.Latest); n > 0 {
		w.last = t.Latest[n-1].Number
	}
	return out
}

// of returns what is known of a subject, nil if there is no room for it.
func (w *Watch) of(r *watched, s Subject) *condition {
	c := r.subjects[s]
	if c == nil {
		if len(r.subjects) >= maxSubjects {
			w.lost.Add(lossSubjects, 1)
			return nil
		}
		c = &condition{}
		r.subjects[s] = c
	}
	c.seen = true
	return c
}

// gone forgets the subjects that are not there any more.
func (r *watched) gone(now time.Time) (out []Alert) {
	var gone []Subject
	for s, c := range r.subjects {
		if !c.seen {
			gone = append(gone, s)
		}
	}
	slices.SortFunc(gone, compare)
	for _, s := range gone {
		c := r.subjects[s]
		delete(r.subjects, s)
		if c.firing {
			a := c.last
			a.Resolved, a.Time, a.Text = true, now, fmt.Sprintf("resolved: %s is gone, or not known any more (%s)", s, r.Rule)
			out = append(out, a)
		}
	}
	return out
}

// observe takes a value, and returns an Alert if it tells anything.
func (r *watched) observe(c *condition, at time.Duration, m measure) (Alert, bool) {
	a := Alert{Subject: m.Subject, Value: m.is, Limit: r.amount(m.whole), Whole: m.whole}
	if r.unit == percent && m.whole == 0 {
		return a, false // nobody knows of what
	}
	if r.grows {
		base, old := c.base(at, r.window)
		c.keep(at, m.is, r.window)
		if !old {
			return a, false
		}
		a.Value = m.is - base
	}
	slack := a.Limit / margin
	if c.firing {
		if r.holds(a.Value, a.Limit, slack) {
			return a, false
		}
		c.firing, c.pending = false, false
		a.Resolved, a.Text = true, "resolved: "+r.text(&a, m.is)
		return a, true
	}
	if !r.holds(a.Value, a.Limit, 0) {
		c.pending = false
		return a, false
	}
	if !c.pending {
		c.pending, c.since = true, at
	}
	if !r.grows && at-c.since < r.window {
		return a, false
	}
	c.firing = true
	a.Text = r.text(&a, m.is)
	return a, true
}

// holds tells whether a value is as the rule has it, or misses that by less than slack.
func (r *Rule) holds(is, limit, slack int64) bool {
	switch r.op {
	case ">":
		return is > limit-slack
	case ">=", "":
		return is >= limit-slack
	case "<":
		return is < limit+slack
	}
	return is <= limit+slack
}

// base returns what the value was as long ago as the window is, and whether it was there.
func (c *condition) base(at, window time.Duration) (is int64, old bool) {
	for _, s := range c.samples {
		if at-s.at < window {
			break
		}
		is, old = s.is, true
	}
	return is, old
}

// keep keeps a sample, unless one was kept so shortly before that there would be too many,
// and drops those that are too old to be compared with.
func (c *condition) keep(at time.Duration, is int64, window time.Duration) {
	n := len(c.samples)
	if n > 0 && at-c.samples[n-1].at < window/(maxSamples-2) {
		return
	}
	for len(c.samples) > 1 && at-c.samples[1].at >= window {
		c.samples = c.samples[1:]
	}
	c.samples = append(slices.Clip(c.samples), sample{at, is})
}

// failures tells of processes that ran out of memory.
func (w *Watch) failures(r *watched, at time.Duration, t *state.Totals) (out []Alert) {
	if len(t.Latest) > 0 {
		w.lost.Add(lossFailures, uint64(max(t.Latest[0].Number-w.last-1, 0)))
	}
	for i := range t.Latest {
		x := &t.Latest[i]
		if x.Number <= w.last {
			continue
		}
		s := Subject{GPU: name(x.GPU), PID: x.PID, Process: name(x.Process)}
		c := w.of(r, s)
		if c == nil {
			continue
		}
		c.since = at
		if c.firing {
			continue
		}
		c.firing = true
		c.last = Alert{Rule: oom, Subject: s, Time: x.Time, Value: int64(min(x.Requested, maxAmount))}
		c.last.Text = fmt.Sprintf("%s ran out of memory: %s were asked for (%s)", s, bytefmt.Format(c.last.Value), oom)
		out = append(out, c.last)
	}
	for _, s := range slices.SortedFunc(maps.Keys(r.subjects), compare) {
		c := r.subjects[s]
		if at-c.since < quiet {
			continue
		}
		delete(r.subjects, s)
		a := c.last
		a.Resolved, a.Time = true, t.Meta.Start.Add(t.Meta.Duration)
		a.Text = fmt.Sprintf("resolved: %s has not run out of memory for %s (%s)", s, short(quiet), oom)
		out = append(out, a)
	}
	return out
}

// text says what an Alert does, of a value.
func (r *Rule) text(a *Alert, is int64) string {
	format := bytefmt.Format
	if r.what.counts {
		format = bytefmt.Count
	}
	share := ""
	if a.Whole > 0 {
		share = fmt.Sprintf(", %s of %s", bytefmt.Percent(is, a.Whole), format(a.Whole))
	}
	if r.grows {
		grown := "grew by " + format(a.Value)
		if a.Value < 0 {
			grown = "shrank by " + format(-a.Value)
		}
		return fmt.Sprintf("%s: %s %s in %s, to %s%s (%s)", a.Subject, r.what.name, grown, short(r.window), format(is), share, r)
	}
	return fmt.Sprintf("%s: %s is %s%s (%s)", a.Subject, r.what.name, format(is), share, r)
}
