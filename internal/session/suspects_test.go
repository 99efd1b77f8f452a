package session

import (
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
)

// Growth goes under the one suspect before it, and memory given back is taken
// from the latest growths.
func TestGrowth(t *testing.T) {
	load := siteOf(&event.Event{API: 1, Stack: 10})
	limit := siteOf(&event.Event{API: 2, Stack: 20})
	one := func(stack uint64) *suspects {
		if stack == 10 {
			return &suspects{site: load, any: true}
		}
		return &suspects{site: limit, any: true}
	}
	type step struct {
		bytes int64
		s     *suspects
	}
	for _, c := range []struct {
		name  string
		steps []step
		want  map[uint64]int64 // by stack
	}{
		{"nothing suspected", []step{{100, nil}}, nil},
		{"one call site", []step{{100, one(10)}}, map[uint64]int64{10: 100}},
		{"again", []step{{100, one(10)}, {50, one(10)}}, map[uint64]int64{10: 150}},
		{"two in one reading", []step{{100, &suspects{site: load, any: true, mixed: true}}}, nil},
		{"two in turn", []step{{100, one(10)}, {7, one(20)}}, map[uint64]int64{10: 100, 20: 7}},
		{"part given back", []step{{100, one(10)}, {-30, nil}}, map[uint64]int64{10: 70}},
		{"latest first", []step{{100, one(10)}, {7, one(20)}, {-10, nil}}, map[uint64]int64{10: 97}},
		{"more than was seen", []step{{100, one(10)}, {-1000, nil}}, nil},
		{"no growth", []step{{0, one(10)}}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var a account
			var sum int64
			for _, s := range c.steps {
				a.grew(s.bytes, s.s)
			}
			got := map[uint64]int64{}
			for _, g := range a.growths {
				got[g.site.Stack] += g.bytes
			}
			for stack, want := range c.want {
				sum += want
				if got[stack] != want {
					t.Errorf("stack %d: %d bytes, want %d", stack, got[stack], want)
				}
			}
			if len(got) != len(c.want) || a.explained() != sum {
				t.Errorf("got %v, explained %d; want %v", got, a.explained(), c.want)
			}
		})
	}
}

// Two call sites between two readings cannot be told apart.
func TestSuspectsMix(t *testing.T) {
	g := &gpus{suspects: map[event.Process]*suspects{}, look: make(chan struct{}, 1)}
	e := &event.Event{API: 1, Stack: 10, Proc: event.Process{PID: 5}}
	g.suspect(e)
	if len(g.suspects) != 0 {
		t.Error("suspects are kept though no reading will come")
	}
}
