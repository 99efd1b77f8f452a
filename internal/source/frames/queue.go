package frames

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/source/fair"
	"github.com/gpumemtrace/gpumemtrace/internal/source/work"
)

const (
	// maxQueued bounds the jobs of all users that wait.
	maxQueued = 4096
	// patience bounds how long a caller waits for the names of the latest stacks.
	patience = 2 * time.Second
	// slow is how long reading from a process may take before a note says so.
	slow = 5 * time.Second
)

// A queue runs jobs that read a process, one at a time. Users are served in turn, and the
// jobs of one user in order. A target decides how long its memory and its files take to
// read.
type queue struct {
	jobs  *fair.Queue
	meter *work.Meter

	mu      sync.Mutex
	added   uint64
	pending map[uint64]bool // jobs that are neither done nor dropped, by number
	waiting map[*waiter]bool
	busy    int // the process that is being read, 0 for none
	since   time.Time
}

// A waiter waits for the jobs that were pending when it was made.
type waiter struct {
	last uint64 // of them
	left int
	done chan struct{} // closed when they are done
}

func newQueue(meter *work.Meter) *queue {
	return &queue{
		jobs:  fair.New(fair.Limits{Running: 1, PerUser: 1, Waiting: maxQueued}),
		meter: meter, pending: map[uint64]bool{}, waiting: map[*waiter]bool{},
	}
}

// close drops the waiting jobs, and waits for the running one. It fails if a target does
// not answer.
func (q *queue) close() error {
	q.jobs.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	q.wait(ctx)
	if ctx.Err() != nil {
		pid, _ := q.reading()
		return fmt.Errorf("process %d does not answer: the trace is not closed", pid)
	}
	return nil
}

// add queues a job that reads the process pid of a user. If there is no room for it, drop
// is called instead. Neither add nor drop blocks.
func (q *queue) add(user uint16, pid int, run, drop func()) {
	q.mu.Lock()
	q.added++
	id := q.added
	q.pending[id] = true
	q.mu.Unlock()
	q.jobs.Do(uint32(user), func() {
		q.set(pid)
		q.meter.Do(user, run)
		q.set(0)
		q.over(id)
	}, func() {
		drop()
		q.over(id)
	})
}

// over ends a job.
func (q *queue) over(id uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.pending, id)
	for w := range q.waiting {
		if id > w.last {
			continue
		}
		if w.left--; w.left == 0 {
			close(w.done)
			delete(q.waiting, w)
		}
	}
}

func (q *queue) set(pid int) {
	q.mu.Lock()
	q.busy, q.since = pid, time.Now()
	q.mu.Unlock()
}

// wait returns when all jobs so far are done, or ctx ends.
func (q *queue) wait(ctx context.Context) {
	q.mu.Lock()
	w := &waiter{q.added, len(q.pending), make(chan struct{})}
	if w.left == 0 {
		q.mu.Unlock()
		return
	}
	q.waiting[w] = true
	q.mu.Unlock()
	select {
	case <-w.done:
	case <-ctx.Done():
		q.mu.Lock()
		delete(q.waiting, w)
		q.mu.Unlock()
	}
}

// reading returns the process that is being read, 0 for none, and for how long.
func (q *queue) reading() (pid int, took time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.busy == 0 {
		return 0, 0
	}
	return q.busy, time.Since(q.since)
}

// note names the process that delays the names of others, "" for none.
func (q *queue) note() string {
	pid, took := q.reading()
	if took < slow {
		return ""
	}
	return fmt.Sprintf("reading names from process %d has taken %.0f s: new stacks have none until it ends", pid, took.Seconds())
}
