package session

import (
	"fmt"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/loss"
)

const (
	// readingPatience bounds how long anybody waits for the driver's figures:
	// a driver in trouble may never answer.
	readingPatience = 2 * time.Second
	// readingShare and readingPause keep readings apart: they take at most one
	// part in so many of the time, and come no sooner after each other.
	readingShare = 10
	readingPause = 100 * time.Millisecond
)

// A reading is one look at the driver's figures.
type reading struct {
	more func() // what else to ask the driver, nil for nothing
	done chan struct{}
}

// readings are looks at the driver's figures: every so often, because they are
// gone once a process has ended, and when somebody asks. Only their goroutine
// calls the driver, so nobody else can be kept waiting by it.
type readings struct {
	look func()
	soon <-chan struct{} // asks for a reading without waiting for it
	asks chan reading
	end  chan struct{}
	done chan struct{} // closed when it has ended

	mu    sync.Mutex
	since time.Time // when the reading under way began, zero for none
	late  uint64    // readings that nobody waited for to the end
}

func newReadings(look func(), soon <-chan struct{}) *readings {
	return &readings{look: look, soon: soon, asks: make(chan reading), end: make(chan struct{}), done: make(chan struct{})}
}

// run reads until stop.
func (r *readings) run() {
	defer close(r.done)
	tick := time.NewTicker(accountInterval)
	defer tick.Stop()
	var next time.Time // no reading before, unless somebody asks
	for {
		var asked reading
		select {
		case <-r.end:
			return
		case asked = <-r.asks:
		case <-tick.C:
		case <-r.soon:
		}
		if asked.done == nil && !r.wait(next, &asked) {
			return
		}
		began := time.Now()
		r.begin(began)
		r.look()
		if asked.more != nil {
			asked.more()
		}
		r.begin(time.Time{})
		next = time.Now().Add(max(readingPause, time.Since(began)*(readingShare-1)))
		if asked.done != nil {
			close(asked.done)
		}
	}
}

// wait returns at next or when somebody asks, and false when run must end.
func (r *readings) wait(next time.Time, asked *reading) bool {
	timer := time.NewTimer(time.Until(next))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case *asked = <-r.asks:
		return true
	case <-r.end:
		return false
	}
}

func (r *readings) begin(at time.Time) {
	r.mu.Lock()
	r.since = at
	r.mu.Unlock()
}

// ask has the figures read, and returns when they are, or when its patience
// ends: then those of the last reading stand.
func (r *readings) ask() { r.askMore(nil) }

// askMore is ask, with more to ask the driver after that.
func (r *readings) askMore(more func()) {
	patience := time.NewTimer(readingPatience)
	defer patience.Stop()
	asked := reading{more, make(chan struct{})}
	select {
	case r.asks <- asked:
	case <-r.done:
		return
	case <-patience.C:
		r.miss()
		return
	}
	select {
	case <-asked.done:
	case <-patience.C:
		r.miss()
	}
}

func (r *readings) miss() {
	r.mu.Lock()
	r.late++
	r.mu.Unlock()
}

// stop ends run, and tells whether it has: the driver may not have answered.
func (r *readings) stop() bool {
	close(r.end)
	select {
	case <-r.done:
		return true
	case <-time.After(readingPatience):
		return false
	}
}

func (r *readings) loss() loss.Counter {
	r.mu.Lock()
	defer r.mu.Unlock()
	return loss.Counter{Name: "driver_readings_late", Value: r.late,
		Help: "readings of the driver's totals that were not waited for: those of before were taken"}
}

// note says that the driver does not answer, "" if it does.
func (r *readings) note() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.since.IsZero() || time.Since(r.since) < readingPatience {
		return ""
	}
	return fmt.Sprintf("the driver has not answered for %.0f s: its own totals are those of before", time.Since(r.since).Seconds())
}
