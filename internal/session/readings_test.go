package session

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// A driver that hangs keeps nobody waiting for long, and it is told.
func TestDriverThatHangs(t *testing.T) {
	hang := make(chan struct{})
	r := newReadings(func() { <-hang }, nil)
	go r.run()
	began := time.Now()
	r.ask()
	r.ask()
	if took := time.Since(began); took > 3*readingPatience {
		t.Errorf("asking took %v", took)
	}
	if r.loss().Value != 2 || !strings.Contains(r.note(), "has not answered") {
		t.Errorf("loss %d, note %q", r.loss().Value, r.note())
	}
	if r.stop() {
		t.Error("it says that it has ended")
	}
	close(hang)
	<-r.done
	r.ask() // after its end: nothing to wait for
}

// What else is asked of the driver is asked by the one goroutine that may hang
// there: while it does, the driver is not closed.
func TestMoreIsReadByReadings(t *testing.T) {
	r := newReadings(func() {}, nil)
	go r.run()
	hang, begun := make(chan struct{}), make(chan struct{})
	defer close(hang)
	go r.askMore(func() {
		close(begun)
		<-hang
	})
	<-begun
	if r.stop() {
		t.Error("it says that it has ended")
	}
}

// Readings are asked for at once and otherwise kept apart, however often they
// are wanted.
func TestReadingsAreKeptApart(t *testing.T) {
	var n atomic.Int32
	soon := make(chan struct{}, 1)
	r := newReadings(func() { n.Add(1) }, soon)
	go r.run()
	end := time.After(5 * readingPause)
	for wanted := true; wanted; {
		select {
		case soon <- struct{}{}:
		case <-end:
			wanted = false
		}
	}
	if got := n.Load(); got < 1 || got > 10 {
		t.Errorf("%d readings in %v", got, 5*readingPause)
	}
	before := n.Load()
	began := time.Now()
	for range 20 {
		r.ask()
	}
	if n.Load() < before+20 || time.Since(began) > time.Second {
		t.Errorf("%d readings for 20 asks, %v", n.Load()-before, time.Since(began))
	}
	if !r.stop() || r.loss().Value != 0 {
		t.Errorf("did not end, or lost %d", r.loss().Value)
	}
}
