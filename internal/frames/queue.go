package frames

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	// maxQueued bounds what waits for its names.
	maxQueued = 4096
	// patience bounds how long anybody waits for the names of what came just
	// before.
	patience = 2 * time.Second
	// slow is how long reading from a process may take before the user is told.
	slow = 5 * time.Second
)

// A queue has jobs that read a process done, in order and one at a time, by a
// goroutine of its own: a target decides how long its memory and its files take
// to read.
type queue struct {
	jobs chan func()
	end  chan struct{} // closed to end it
	done chan struct{} // closed when it has ended

	mu    sync.Mutex
	busy  int // the process that is being read, 0 for none
	since time.Time
}

func newQueue() *queue {
	q := &queue{jobs: make(chan func(), maxQueued), end: make(chan struct{}), done: make(chan struct{})}
	go q.run()
	return q
}

// run does jobs until end is closed.
func (q *queue) run() {
	defer close(q.done)
	for {
		select {
		case job := <-q.jobs:
			job()
		case <-q.end:
			return
		}
	}
}

// close ends run. It fails if a target does not answer.
func (q *queue) close() error {
	close(q.end)
	select {
	case <-q.done:
		return nil
	case <-time.After(patience):
		pid, _ := q.reading()
		return fmt.Errorf("process %d does not answer: the trace is not closed", pid)
	}
}

// add has a job done that reads the process pid, and tells whether there was
// room. It waits for nothing.
func (q *queue) add(pid int, job func()) bool {
	timed := func() {
		q.set(pid)
		job()
		q.set(0)
	}
	select {
	case q.jobs <- timed:
		return true
	default:
		return false
	}
}

func (q *queue) set(pid int) {
	q.mu.Lock()
	q.busy, q.since = pid, time.Now()
	q.mu.Unlock()
}

// settle waits until all jobs so far are done, or ctx ends.
func (q *queue) settle(ctx context.Context) {
	settled := make(chan struct{})
	select {
	case q.jobs <- func() { close(settled) }:
	case <-q.done:
		return
	case <-ctx.Done():
		return
	}
	select {
	case <-settled:
	case <-q.done:
	case <-ctx.Done():
	}
}

// reading returns the process that is being read, and for how long, 0 for none.
func (q *queue) reading() (pid int, took time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.busy == 0 {
		return 0, 0
	}
	return q.busy, time.Since(q.since)
}

// note says which process keeps others from being named, "" for none.
func (q *queue) note() string {
	pid, took := q.reading()
	if took < slow {
		return ""
	}
	return fmt.Sprintf("reading names from process %d has taken %.0f s: new stacks have none meanwhile", pid, took.Seconds())
}
