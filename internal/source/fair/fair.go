// Package fair divides work fairly among users. Many jobs of one user, or slow ones, do not delay the
// jobs of others.
package fair

import (
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/keyed"
)

// Limits bound a Queue.
type Limits struct {
	Running int // running jobs of all users
	PerUser int // running jobs of one user, with slow ones
	Waiting int // waiting jobs of all users
	// After Slow a job no longer counts for Running, unless Slow is 0. It still counts for its user.
	Slow time.Duration
	// Stuck bounds the slow jobs that do not count for Running.
	Stuck int
}

// A Queue runs the jobs of all users in turn. It is safe for concurrent use.
type Queue struct {
	limits Limits

	mu      sync.Mutex
	lines   map[uint32]*line
	turns   []uint32 // users with waiting jobs, the next one first
	waiting int
	running int
	stuck   int
	closed  bool
}

// A line has the jobs of one user.
type line struct {
	waiting []job
	running int
}

type job struct {
	run  func()
	drop func()
}

// New returns an empty Queue.
func New(l Limits) *Queue {
	return &Queue{limits: l, lines: map[uint32]*line{}}
}

// Do calls run in a goroutine when it is the user's turn. If too many jobs wait, the user with the
// most of them loses the latest, and Do or a later Do calls its drop instead. Do does not wait, and
// drop must not either.
func (q *Queue) Do(user uint32, run, drop func()) {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		drop()
		return
	}
	l := q.line(user)
	if len(l.waiting) == 0 {
		q.turns = append(q.turns, user)
	}
	l.waiting = append(l.waiting, job{run, drop})
	q.waiting++
	q.start()
	dropped := func() {}
	if q.waiting > q.limits.Waiting {
		dropped = q.removeLatest(q.longest())
	}
	q.mu.Unlock()
	dropped()
}

// Close drops the waiting jobs. It does not wait for those that run.
func (q *Queue) Close() {
	q.mu.Lock()
	q.closed = true
	var dropped []func()
	for len(q.turns) > 0 {
		dropped = append(dropped, q.removeLatest(q.turns[0]))
	}
	q.mu.Unlock()
	for _, drop := range dropped {
		drop()
	}
}

func (q *Queue) line(user uint32) *line {
	return keyed.At(q.lines, user)
}

// longest returns the user with the most waiting jobs.
func (q *Queue) longest() (user uint32) {
	most := 0
	for _, u := range q.turns {
		if n := len(q.lines[u].waiting); n > most {
			user, most = u, n
		}
	}
	return user
}

// removeLatest removes the latest waiting job of a user, and returns its drop.
func (q *Queue) removeLatest(user uint32) (drop func()) {
	l := q.lines[user]
	last := len(l.waiting) - 1
	drop = l.waiting[last].drop
	l.waiting[last] = job{}
	l.waiting = l.waiting[:last]
	q.waiting--
	if last == 0 {
		for i, u := range q.turns {
			if u == user {
				q.turns = append(q.turns[:i], q.turns[i+1:]...)
				break
			}
		}
		q.forget(user)
	}
	return drop
}

// start starts as many jobs as may run. The caller holds q.mu.
func (q *Queue) start() {
	for {
		user, j, ok := q.next()
		if !ok {
			return
		}
		go q.run(user, j)
	}
}

// next removes the next job that may run, and counts it as running. The caller holds q.mu.
func (q *Queue) next() (user uint32, j job, ok bool) {
	if q.running >= q.limits.Running {
		return 0, job{}, false
	}
	for i, user := range q.turns {
		l := q.lines[user]
		if l.running >= q.limits.PerUser {
			continue
		}
		j = l.waiting[0]
		l.waiting[0] = job{}
		l.waiting = l.waiting[1:]
		q.waiting--
		q.turns = append(q.turns[:i], q.turns[i+1:]...)
		if len(l.waiting) > 0 {
			q.turns = append(q.turns, user)
		}
		l.running++
		q.running++
		return user, j, true
	}
	return 0, job{}, false
}

// run runs a job, and then those whose turn it is. A goroutine for each job would cost more than
// many a job does.
func (q *Queue) run(user uint32, j job) {
	for ok := true; ok; {
		stuck := q.runOne(j)
		q.mu.Lock()
		if stuck {
			q.stuck--
		} else {
			q.running--
		}
		q.lines[user].running--
		q.forget(user)
		user, j, ok = q.next()
		q.start()
		q.mu.Unlock()
	}
}

// runOne runs a job, and reports whether it counts as stuck.
func (q *Queue) runOne(j job) (stuck bool) {
	if q.limits.Slow == 0 {
		j.run()
		return false
	}
	done := false
	slow := time.AfterFunc(q.limits.Slow, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if !done && q.stuck < q.limits.Stuck {
			stuck = true
			q.stuck++
			q.running--
			q.start()
		}
	})
	j.run()
	slow.Stop()
	q.mu.Lock()
	defer q.mu.Unlock()
	done = true
	return stuck
}

// forget removes the line of a user without jobs.
func (q *Queue) forget(user uint32) {
	if l := q.lines[user]; l.running == 0 && len(l.waiting) == 0 {
		delete(q.lines, user)
	}
}
