package alert

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/leaks"
	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// An Alert says that a rule became true for a subject, or that it is no longer true.
type Alert struct {
	Rule     string    `json:"rule"`
	Resolved bool      `json:"resolved"`
	Subject  Subject   `json:"subject"`
	Time     time.Time `json:"time"`
	Since    time.Time `json:"since"` // when it became true
	// Value is in bytes. Limit is the limit of the rule. Whole is what a percentage refers to, 0
	// for none.
	Value int64 `json:"value"`
	Limit int64 `json:"limit"`
	Whole int64 `json:"whole,omitempty"`
	// Text says all of this in one line, for people.
	Text string `json:"text"`
	// For a leak, Stack is the stack that grew most: function, file and line of each frame,
	// the innermost first.
	Stack []string `json:"stack,omitempty"`
}

const (
	// maxSubjects bounds the subjects of one rule that have a condition.
	maxSubjects = 1 << 13
	// An out-of-memory alert ends after quiet without another failure.
	quiet = 10 * time.Minute
	// An alert ends after its value was back inside the limit, or unknown, for settled.
	settled = 5 * time.Minute
	// To count as back inside the limit, a value must be inside it by 1/margin of the limit.
	margin = 20
)

// A Watch knows the subjects for which its rules are true. It is pure. Only one goroutine may
// use it.
type Watch struct {
	rules []*watched
	last  int64 // number of the latest out-of-memory failure that was checked
	leaks []leaks.Leak
	lost  *loss.Set
}

var causes loss.Causes

var (
	lossSubjects = causes.Add("alert_subjects_full", "times that a rule did not look at a process or a GPU because there were too many")
	lossFailures = causes.Add("alert_failures_missed", "out-of-memory failures that no rule checked because too many came at once")
)

// A watched is a rule with the conditions of its subjects.
type watched struct {
	Rule
	subjects map[Subject]*condition // by Subject.key
}

// A condition is the state of a rule for one subject.
type condition struct {
	firing bool
	// turning means that the rule is true but does not fire yet, or fires but is no longer
	// true.
	turning bool
	since   time.Duration // when turning became true; for oom, time of the latest failure
	seen    time.Duration // when its value was known last
	last    Alert
}

// NewWatch returns a Watch of rules that are true of nothing yet.
func NewWatch(rules []Rule) *Watch {
	w := &Watch{lost: loss.New(causes)}
	w.Change(rules)
	return w
}

// Change replaces the rules of w. A rule that w already has keeps its conditions. A new rule
// does not report earlier failures.
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

// HasRules returns whether there is anything to watch.
func (w *Watch) HasRules() bool { return len(w.rules) > 0 }

// Loss returns every cause of loss.
func (w *Watch) Loss() []loss.Counter { return w.lost.Counters() }

// Firing returns what fires as of the last Observe, each with the latest value.
func (w *Watch) Firing() (out []Alert) {
	for _, r := range w.rules {
		for _, s := range sorting.Keys(r.subjects, compare) {
			if c := r.subjects[s]; c.firing {
				out = append(out, c.last)
			}
		}
	}
	return out
}

// Leaks takes what the latest search for leaks found, the largest growth first, for the next
// Observe.
func (w *Watch) Leaks(found []leaks.Leak) { w.leaks = found }

// Observe takes the totals of a moment, and returns the alerts that began or ended. at is the
// time of that moment, counted from an arbitrary one.
func (w *Watch) Observe(at time.Duration, t *state.Totals) (out []Alert) {
	now := t.Meta.Start.Add(t.Meta.Duration)
	living := processes(t)
	for _, r := range w.rules {
		if r.what == nil {
			out = append(out, w.failures(r, at, t)...)
			continue
		}
		for _, m := range r.what.measures(&look{t, w.leaks}) {
			c := w.of(r, at, m.Subject)
			if c == nil {
				continue
			}
			if a, changed := r.observe(c, at, now, m); changed {
				out = append(out, a)
			}
		}
		out = append(out, r.gone(at, now, living)...)
	}
	if n := len(t.Latest); n > 0 {
		w.last = t.Latest[n-1].Number
	}
	return out
}

// of returns the condition of a subject, nil if there is no room for it.
func (w *Watch) of(r *watched, at time.Duration, s Subject) *condition {
	k := s.key()
	c := r.subjects[k]
	if c == nil {
		if len(r.subjects) >= maxSubjects {
			w.lost.Add(lossSubjects, 1)
			return nil
		}
		c = &condition{}
		r.subjects[k] = c
	}
	c.seen = at
	return c
}

// gone forgets subjects without a current value, and returns the ends of their alerts. It
// forgets ended processes at once, and other subjects after a while: a reading may fail.
func (r *watched) gone(at time.Duration, now time.Time, living map[int]Subject) (out []Alert) {
	for _, s := range sorting.Keys(r.subjects, compare) {
		c := r.subjects[s]
		if c.seen == at {
			continue
		}
		if !c.firing {
			c.turning = false
		}
		if _, lives := living[s.PID]; at-c.seen < settled && (s.PID == 0 || lives) {
			continue
		}
		delete(r.subjects, s)
		if c.firing {
			a := c.last
			a.Resolved, a.Time, a.Text = true, now, fmt.Sprintf("resolved: %s is gone, or not known any more (%s)", a.Subject, r.Rule)
			out = append(out, a)
		}
	}
	return out
}

// observe takes a value, and returns an Alert if there is something to report.
func (r *watched) observe(c *condition, at time.Duration, now time.Time, m measure) (Alert, bool) {
	a := Alert{Subject: m.Subject, Time: now, Value: m.is, Limit: r.limit(m.whole), Whole: m.whole}
	if r.percent > 0 && m.whole == 0 {
		return a, false // it is not known what the percentage refers to
	}
	slack, wait := int64(0), r.window
	if c.firing {
		slack, wait = a.Limit/margin, settled
	}
	so := a.Value > a.Limit-slack
	if !c.turning {
		c.since = at
	}
	c.turning = so != c.firing
	changed := c.turning && at-c.since >= wait
	if !changed && !c.firing {
		return a, false
	}
	a.Rule, a.Text = r.String(), r.text(&a, m.value)
	switch {
	case m.leak != nil:
		a.Stack = m.leak.Frames
	case c.firing:
		a.Stack = c.last.Stack
	}
	if !changed {
		a.Since = c.last.Since
		c.last = a
		return a, false
	}
	c.firing, c.turning, a.Since = so, false, now
	if a.Resolved = !so; a.Resolved {
		a.Since = c.last.Since
		a.Text = "resolved: " + a.Text
	}
	c.last = a
	return a, true
}

// failures reports processes that ran out of memory.
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
		c := w.of(r, at, s)
		if c == nil {
			continue
		}
		c.since = at
		if c.firing {
			continue
		}
		c.firing = true
		c.last = Alert{Rule: oom, Subject: s, Time: x.Time, Since: x.Time, Value: int64(min(x.Requested, 1<<60))}
		c.last.Text = fmt.Sprintf("%s ran out of memory: it requested %s (%s)", s, bytefmt.Format(c.last.Value), oom)
		out = append(out, c.last)
	}
	for _, s := range sorting.Keys(r.subjects, compare) {
		c := r.subjects[s]
		if at-c.since < quiet {
			continue
		}
		delete(r.subjects, s)
		a := c.last
		a.Resolved, a.Time = true, t.Meta.Start.Add(t.Meta.Duration)
		a.Text = fmt.Sprintf("resolved: %s has not run out of memory for %s (%s)", a.Subject, bytefmt.Duration(quiet), oom)
		out = append(out, a)
	}
	return out
}

// text returns the text of an Alert about a value.
func (r *Rule) text(a *Alert, of value) string {
	if r.what.name == leakName {
		return fmt.Sprintf("%s: %s (%s)", a.Subject, leakText(of), r)
	}
	share := ""
	if a.Whole > 0 {
		share = fmt.Sprintf(", %s of %s", bytefmt.Percent(of.is, a.Whole), bytefmt.Format(a.Whole))
	}
	return fmt.Sprintf("%s: %s is %s%s (%s)", a.Subject, r.what.name, bytefmt.Format(of.is), share, r)
}

// leakText says what leaks, with the program's own line first.
func leakText(of value) string {
	l := of.leak
	if l == nil {
		return "no stack grows any more"
	}
	text := fmt.Sprintf("memory of a stack grew by %s in %s and is still held", bytefmt.Format(l.Growth), bytefmt.Duration(l.Over))
	if l.Line != "" {
		text += ", allocated at " + l.Line
	}
	text += ", by " + l.Brief
	if n := of.leaks - 1; n > 0 {
		text += fmt.Sprintf(", and %d more grew by %s", n, bytefmt.Format(of.is-l.Growth))
	}
	return text
}
