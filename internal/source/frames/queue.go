package frames

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/source/fair"
	"github.com/gpumemtrace/gpumemtrace/internal/source/work"
)

const (
	// maxQueued bounds what waits for its names, of all users.
	maxQueued = 4096
	// patience bounds how long anybody waits for the names of what came just
	// before.
	patience = 2 * time.Second
	// slow is how long reading from a process may take before the user is told.
	slow = 5 * time.Second
)

// A queue has jobs that read a process done, one at a time, those of each user in turn
// and in order: a target decides how long its memory and its files take to read.
type queue struct {
	jobs  *fair.Queue
	meter *work.Meter

	mu      sync.Mutex
	added   uint64
	pending map[uint64]bool // jobs that are neither done nor dropped, by when they were added
	waiting map[*waiter]bool
	busy    int // the process that is being read, 0 for none
	since   time.Time
}

// A waiter waits for the jobs that were pending when it came.
type waiter struct {
	last uint64 // of them
	left int
	done chan struct{} // closed when they are done
}

func newQueue(meter *work.Meter) *queue {
	return &queue{
		jobs:  fair.New(fair.Limits{Running: 1, PerUser: 1, Waiting: maxQueued, Slow: math.MaxInt64}),
		meter: meter, pending: map[uint64]bool{}, waiting: map[*waiter]bool{},
	}
}

// close drops the jobs that wait, and waits for the one that runs. It fails if a target
// does not answer.
func (q *queue) close() error {
	q.jobs.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	q.settle(ctx)
	if ctx.Err() != nil {
		pid, _ := q.reading()
		return fmt.Errorf("process %d does not answer: the trace is not closed", pid)
	}
	return nil
}

// add has a job done that reads the process pid of a user. If there is no room for it
// drop is called instead. It waits for nothing, and drop must not either.
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

// over says that a job is not pending any more.
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

// settle waits until all jobs so far are done, or ctx ends.
func (q *queue) settle(ctx context.Context) {
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
