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

// Counters of one layer and class are shown as one, and those of another version as they are.
func TestShown(t *testing.T) {
	got := Shown([]Counter{{"stacks_not_sent", "x", 1}, {"events_ring_full", "events dropped", 2}, {"stacks_not_named", "y", 3}, {"tensor_sites_full", "z", 4}, {"of another version", "w", 5}})
	want := []Counter{
		{"stacks_late", "call stacks that came late, were sent again or were put off", 4},
		{"events_ring_full", "events dropped. Trace less (-p instead of -a, no --tensors), or keep a processor free for the tracer", 2},
		{"tensor_full", "tensors left out or counted together because a table was full. Trace fewer processes (-p), or for a shorter time. A note names the process that has most", 4},
		{"of another version", "w", 5},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if again := Shown(got); !slices.Equal(again, want) {
		t.Errorf("shown twice: %+v, want %+v", again, want)
	}
	for _, l := range layers {
		for _, c := range Classes {
			if p, known := PlaceOf(l.name + "_" + c.Name); known {
				t.Errorf("a counter is named as a class is: %+v", p)
			}
		}
	}
}
