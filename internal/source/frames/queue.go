package frames

import (
	"context"
	"fmt"
	"maps"
	"slices"
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
	busy  work.Busy

	mu      sync.Mutex
	pending map[chan struct{}]bool // one for each job, closed when it is done or dropped
}

func newQueue(meter *work.Meter) *queue {
	return &queue{
		jobs:  fair.New(fair.Limits{Running: 1, PerUser: 1, Waiting: maxQueued}),
		meter: meter, pending: map[chan struct{}]bool{},
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
		pid, _ := q.busy.Process()
		return fmt.Errorf("process %d does not answer: the trace is not closed", pid)
	}
	return nil
}

// add queues a job that reads the process pid of a user. If there is no room for it, drop
// is called instead. Neither add nor drop blocks.
func (q *queue) add(user uint16, pid int, run, drop func()) {
	over := make(chan struct{})
	q.mu.Lock()
	q.pending[over] = true
	q.mu.Unlock()
	q.jobs.Do(uint32(user), func() {
		q.busy.Set(pid)
		q.meter.Do(user, run)
		q.busy.Set(0)
		q.end(over)
	}, func() {
		drop()
		q.end(over)
	})
}

// end ends a job.
func (q *queue) end(over chan struct{}) {
	q.mu.Lock()
	delete(q.pending, over)
	q.mu.Unlock()
	close(over)
}

// wait returns when all jobs so far are done, or ctx ends.
func (q *queue) wait(ctx context.Context) {
	q.mu.Lock()
	pending := slices.Collect(maps.Keys(q.pending))
	q.mu.Unlock()
	for _, over := range pending {
		select {
		case <-over:
		case <-ctx.Done():
			return
		}
	}
}

// note names the process that has delayed the names of others for so long, "" for none.
func (q *queue) note(slow time.Duration) string {
	pid, took := q.busy.Process()
	if pid == 0 || took < slow {
		return ""
	}
	return fmt.Sprintf("reading names from process %d has taken %.0f s: new stacks have none until it ends", pid, took.Seconds())
}
