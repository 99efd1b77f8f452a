// Package loss has the one shape of what a part of the tracer can lose: a table
// of causes, and a count for each. Loss is never silent: every part lists its
// causes once, and outputs show each that is not zero. It is a leaf: it imports
// nothing of this module.
package loss

import "sync/atomic"

// A Cause is one way to lose something, or one thing worth knowing.
type Cause struct {
	Name string // snake_case, stable: "events_ring_full"
	Help string // one clause for people: "events dropped because ..."
}

// A Counter is how often a cause struck.
type Counter struct {
	Name  string `json:"name"`
	Help  string `json:"help"`
	Value uint64 `json:"value"`
}

// Causes is the table of one part of the tracer.
type Causes []Cause

// Add appends a cause and returns its index.
func (c *Causes) Add(name, help string) int {
	*c = append(*c, Cause{name, help})
	return len(*c) - 1
}

// Counter returns the cause's counter with a value that is counted elsewhere.
func (c Cause) Counter(value uint64) Counter { return Counter{c.Name, c.Help, value} }

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
