// Package fair shares out work among users. A user with many jobs, or with jobs that
// take long, does not keep the jobs of others waiting.
package fair

import (
	"sync"
	"time"
)

// Limits bound a Queue.
type Limits struct {
	Running int // jobs that run at one time, of all users
	PerUser int // jobs of one user that run at one time, the slow ones included
	Waiting int // jobs that wait, of all users
	// Slow is how long a job counts as one of Running. One that takes longer still
	// counts as one of its user's.
	Slow time.Duration
	// Stuck bounds the slow jobs that do not count as Running.
	Stuck int
}

// A Queue runs jobs, of each user in turn. It is safe for concurrent use.
type Queue struct {
	limits Limits

	mu      sync.Mutex
	lines   map[uint32]*line
	turns   []uint32 // the users who wait, the next one first
	waiting int
	running int
	stuck   int
	closed  bool
}

// A line is what a user has in a Queue.
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

// Do has run called, in a goroutine, when it is the user's turn. If that will not
// be, drop is called instead: when too many jobs wait the user with the most of them
// loses the latest, which may be this one. Do does not wait, and drop must not either.
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
		dropped = q.takeLatest(q.longest())
	}
	q.mu.Unlock()
	dropped()
}

// Close drops the jobs that wait. Those that run are not waited for.
func (q *Queue) Close() {
	q.mu.Lock()
	q.closed = true
	var dropped []func()
	for len(q.turns) > 0 {
		dropped = append(dropped, q.takeLatest(q.turns[0]))
	}
	q.mu.Unlock()
	for _, drop := range dropped {
		drop()
	}
}

func (q *Queue) line(user uint32) *line {
	l := q.lines[user]
	if l == nil {
		l = &line{}
		q.lines[user] = l
	}
	return l
}

// longest returns the user with the most jobs that wait.
func (q *Queue) longest() (user uint32) {
	most := 0
	for _, u := range q.turns {
		if n := len(q.lines[u].waiting); n > most {
			user, most = u, n
		}
	}
	return user
}

// takeLatest removes the latest job of a user who waits, and returns what drops it.
func (q *Queue) takeLatest(user uint32) (drop func()) {
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

// start starts as many jobs as may run. q.mu is held.
func (q *Queue) start() {
	for i := 0; i < len(q.turns) && q.running < q.limits.Running; {
		user := q.turns[i]
		l := q.lines[user]
		if l.running >= q.limits.PerUser {
			i++
			continue
		}
		j := l.waiting[0]
		l.waiting[0] = job{}
		l.waiting = l.waiting[1:]
		q.waiting--
		q.turns = append(q.turns[:i], q.turns[i+1:]...)
		if len(l.waiting) > 0 {
			q.turns = append(q.turns, user)
		}
		l.running++
		q.running++
		go q.run(user, j)
		i = 0
	}
}

// run runs one job.
func (q *Queue) run(user uint32, j job) {
	done, stuck := false, false
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
	if stuck {
		q.stuck--
	} else {
		q.running--
	}
	q.lines[user].running--
	q.forget(user)
	q.start()
}

// forget forgets a user who has nothing in the Queue.
func (q *Queue) forget(user uint32) {
	if l := q.lines[user]; l.running == 0 && len(l.waiting) == 0 {
		delete(q.lines, user)
	}
}
