package unwind

import (
	"sync"
	"sync/atomic"
	"testing"
)

// A room has at most its limit at a time, and one reader beyond it.
func TestRoom(t *testing.T) {
	r := newRoom(10)
	excess := r.enter(11)
	first := r.enter(6)
	second := r.enter(4) // fits beside both
	entered := make(chan func())
	go func() { entered <- r.enter(12) }()
	first()
	second()
	select {
	case <-entered:
		t.Fatal("two readers exceed the limit")
	default:
	}
	excess()
	(<-entered)()
	if r.used != 0 || r.excess {
		t.Errorf("in use at the end: %d, %t", r.used, r.excess)
	}
}

// Readers of any size all get their turn.
func TestRoomOfMany(t *testing.T) {
	const limit = 10
	r := newRoom(limit)
	var now atomic.Int64
	var all sync.WaitGroup
	for i := range 400 {
		all.Go(func() {
			size := int64(i % 8)
			leave := r.enter(size)
			if now.Add(size) > limit+7 {
				t.Error("more than the limit and one reader")
			}
			now.Add(-size)
			leave()
		})
	}
	all.Wait()
}
