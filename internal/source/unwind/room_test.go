package unwind

import (
	"sync"
	"sync/atomic"
	"testing"
)

// A room admits its limit or one reader, and one more reader beyond that.
func TestRoom(t *testing.T) {
	r := newRoom(10)
	alone := r.enter(11)
	excess := r.enter(12)
	entered := make(chan func())
	go func() { entered <- r.enter(1) }()
	select {
	case <-entered:
		t.Fatal("a third reader, although the limit is exceeded")
	default:
	}
	alone()
	leave := <-entered
	beside := r.enter(9)
	go func() { entered <- r.enter(1) }()
	excess()
	(<-entered)()
	leave()
	beside()
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
