package loss

import (
	"slices"
	"testing"
)

var causes Causes

var (
	_ = causes.Add("a", "of one sort")
	_ = causes.Add("b", "of another")
	c = Of("c", "of a third")
)

// Every cause that was made is known, whatever table it is in.
func TestAll(t *testing.T) {
	if got, want := All(), append(slices.Clone(causes), c); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// A part that is started afresh goes on counting where the one before ended.
func TestSum(t *testing.T) {
	one, two := New(causes), New(causes)
	one.Add(0, 3)
	two.Add(0, 4)
	two.Add(1, 5)
	if got := Sum(nil, one.Counters()); !slices.Equal(got, one.Counters()) {
		t.Errorf("with none before %v", got)
	}
	before := one.Counters()
	want := []Counter{causes[0].Counter(7), causes[1].Counter(5)}
	if got := Sum(before, two.Counters()); !slices.Equal(got, want) || !slices.Equal(before, one.Counters()) {
		t.Errorf("%v, want %v; before is %v", got, want, before)
	}
}
