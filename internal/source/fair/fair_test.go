package fair

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A list is what jobs did, in order.
type list struct {
	mu  sync.Mutex
	all []string
}

func (l *list) add(s string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, s)
}

func (l *list) adds(s string) func() { return func() { l.add(s) } }

func (l *list) want(t *testing.T, want ...string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Equal(l.all, want) {
		t.Errorf("%q, want %q", l.all, want)
	}
	l.all = nil
}

// A user with many jobs has one of them run between two of another's.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(Limits{Running: 1, PerUser: 1, Waiting: 100, Slow: time.Hour})
		var ran list
		gate := make(chan struct{})
		q.Do(9, func() { <-gate }, nil)
		for range 3 {
			q.Do(1, ran.adds("many"), nil)
		}
		q.Do(2, ran.adds("b"), nil)
		q.Do(3, ran.adds("c"), nil)
		q.Do(2, ran.adds("b"), nil)
		close(gate)
		synctest.Wait()
		ran.want(t, "many", "b", "c", "many", "b", "many")
		if len(q.lines) != 0 || len(q.turns) != 0 || q.waiting != 0 || q.running != 0 {
			t.Errorf("an empty queue holds %+v", q)
		}
	})
}

// Jobs that never end take the places of their user alone.
func TestStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(Limits{Running: 4, PerUser: 2, Waiting: 1000, Slow: time.Second, Stuck: 3})
		var ran list
		gate := make(chan struct{})
		for range 10 {
			q.Do(1, func() { ran.add("stuck"); <-gate }, nil)
		}
		synctest.Wait()
		ran.want(t, "stuck", "stuck")
		q.Do(2, ran.adds("neighbour"), nil)
		synctest.Wait()
		ran.want(t, "neighbour")
		// Others who are stuck as well take the places of all for a second.
		q.Do(3, func() { <-gate }, nil)
		q.Do(4, func() { <-gate }, nil)
		q.Do(2, ran.adds("neighbour"), nil)
		synctest.Wait()
		ran.want(t)
		time.Sleep(time.Second)
		synctest.Wait()
		ran.want(t, "neighbour")
		if q.stuck != 3 || q.running != 1 {
			t.Errorf("%d stuck, %d running: at most 3 may be stuck", q.stuck, q.running)
		}
		close(gate)
		synctest.Wait()
		if q.stuck != 0 || q.running != 0 || len(q.lines) != 0 {
			t.Errorf("an empty queue holds %+v", q)
		}
	})
}

// Where too many jobs wait the user with the most of them loses the latest.
func TestDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(Limits{Running: 1, PerUser: 1, Waiting: 4, Slow: time.Hour})
		var ran, dropped list
		gate := make(chan struct{})
		q.Do(9, func() { <-gate }, nil)
		for _, name := range []string{"a1", "a2", "a3", "a4", "a5"} {
			q.Do(1, ran.adds(name), dropped.adds(name))
		}
		dropped.want(t, "a5")
		q.Do(2, ran.adds("b1"), dropped.adds("b1"))
		dropped.want(t, "a4")
		q.Do(2, ran.adds("b2"), dropped.adds("b2"))
		dropped.want(t, "a3")
		close(gate)
		synctest.Wait()
		ran.want(t, "a1", "b1", "a2", "b2")
	})
}

// What waits when a queue is closed is dropped, and so is what comes later.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(Limits{Running: 1, PerUser: 1, Waiting: 4, Slow: time.Hour})
		var ran, dropped list
		gate := make(chan struct{})
		q.Do(1, func() { <-gate }, nil)
		q.Do(1, ran.adds("a"), dropped.adds("a"))
		q.Do(2, ran.adds("b"), dropped.adds("b"))
		q.Close()
		q.Do(3, ran.adds("c"), dropped.adds("c"))
		close(gate)
		synctest.Wait()
		ran.want(t)
		dropped.want(t, "a", "b", "c")
	})
}
