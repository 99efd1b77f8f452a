// Package loss counts what the parts of the tracer lose: each part has a table of causes,
// and a count for each cause. Loss is never silent: every part lists its causes once, and
// outputs show each that is not zero. It is a leaf: it imports nothing of this module.
package loss

import (
	"slices"
	"sync/atomic"
)

// A Cause is one way to lose something, or one thing worth knowing. Of makes it.
type Cause struct{ name, help string }

// A Counter is how often a cause struck.
type Counter struct {
	Name  string `json:"name"` // snake_case, stable: "events_ring_full"
	Help  string `json:"help"` // one clause for people: "events dropped because ..."
	Value uint64 `json:"value"`
}

// all are those that were made.
var all Causes

// Of makes a cause. It is for variables of packages: All lists each cause that was made.
func Of(name, help string) Cause {
	c := Cause{name, help}
	all = append(all, c)
	return c
}

// All returns every cause of all packages that the program has.
func All() Causes { return slices.Clone(all) }

// Causes is the table of one part of the tracer.
type Causes []Cause

// Add appends a cause, as Of makes it, and returns its index.
func (c *Causes) Add(name, help string) int {
	*c = append(*c, Of(name, help))
	return len(*c) - 1
}

// Counter returns the cause's counter with a value that is counted elsewhere.
func (c Cause) Counter(value uint64) Counter { return Counter{c.name, c.help, value} }

// A Set counts the causes of a table. It is safe for concurrent use.
type Set struct {
	causes []Cause
	values []atomic.Uint64
}

// New returns a Set of zeros. A cause goes by its index in causes.
func New(causes []Cause) *Set {
	return &Set{causes, make([]atomic.Uint64, len(causes))}
}

// Add counts the i-th cause n times.
func (s *Set) Add(i int, n uint64) { s.values[i].Add(n) }

// AddByName adds counters of the same table, perhaps as another version of the program has it.
func (s *Set) AddByName(counters []Counter) {
	for _, c := range counters {
		if i := slices.IndexFunc(s.causes, func(x Cause) bool { return x.name == c.Name }); i >= 0 {
			s.Add(i, c.Value)
		}
	}
}

// Counters returns a counter for each cause, zero ones included, in order.
func (s *Set) Counters() []Counter {
	out := make([]Counter, len(s.causes))
	for i, c := range s.causes {
		out[i] = c.Counter(s.values[i].Load())
	}
	return out
}

// Sum adds what two parts of one table have lost, one after the other. The first may
// have no counters.
func Sum(before, now []Counter) []Counter {
	if len(before) == 0 {
		return now
	}
	out := make([]Counter, len(now))
	for i, c := range now {
		c.Value += before[i].Value
		out[i] = c
	}
	return out
}
