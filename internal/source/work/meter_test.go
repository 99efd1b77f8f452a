package work

import (
	"testing"
	"time"
)

// Work counts and waiting does not, by whom it is for.
func TestMeter(t *testing.T) {
	var m Meter
	m.Do(1, func() {
		for m.Of(0) == 0 { // some work
			m.Do(0, func() {
				for i := range 100000 {
					_ = i * i
				}
			})
		}
	})
	begin := time.Now()
	m.Do(2, func() { time.Sleep(20 * time.Millisecond) })
	if waited := time.Since(begin); m.Of(2) >= waited/2 {
		t.Errorf("%v of %v that were waited", m.Of(2), waited)
	}
	if m.Of(1) < m.Of(0) || m.Of(0) == 0 || m.Of(3) != 0 {
		t.Errorf("%v around %v, %v of nobody", m.Of(1), m.Of(0), m.Of(3))
	}
	both := m.Of(1) + m.Of(2)
	m.Move(1, 2)
	if m.Of(1) != 0 || m.Of(2) != both {
		t.Errorf("%v and %v, want 0 and %v", m.Of(1), m.Of(2), both)
	}
	var none *Meter
	done := false
	none.Do(1, func() { done = true })
	none.Move(1, 2)
	if !done || none.Of(1) != 0 {
		t.Error("no meter does not do it")
	}
}
