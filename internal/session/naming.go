package session

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

const (
	// maxNaming bounds what waits for its names.
	maxNaming = 4096
	// namingPatience bounds how long anybody waits for the names of what came
	// just before.
	namingPatience = 2 * time.Second
)

// A naming reads what only a living process tells: the frames of its stacks and
// its names. It has a goroutine of its own, because a target decides how long
// its memory and its files take to read; the reader of events only leaves jobs.
type naming struct {
	jobs chan func()
	end  chan struct{} // closed to end it
	done chan struct{} // closed when it has ended

	dropped atomic.Uint64 // stacks for which there was no room
	mu      sync.Mutex
	busy    uint32 // the process that is being read, 0 for none
	since   time.Time
}

func newNaming() *naming {
	return &naming{jobs: make(chan func(), maxNaming), end: make(chan struct{}), done: make(chan struct{})}
}

// run does jobs in order until end is closed.
func (n *naming) run() {
	defer close(n.done)
	for {
		select {
		case job := <-n.jobs:
			job()
		case <-n.end:
			return
		}
	}
}

// stop ends run, and tells whether it has: a target may not have answered.
func (n *naming) stop() bool {
	close(n.end)
	select {
	case <-n.done:
		return true
	case <-time.After(namingPatience):
		return false
	}
}

// add has a job done that reads the process pid, and tells whether there was
// room. It waits for nothing.
func (n *naming) add(pid uint32, job func()) bool {
	timed := func() {
		n.set(pid)
		job()
		n.set(0)
	}
	select {
	case n.jobs <- timed:
		return true
	default:
		return false
	}
}

func (n *naming) set(pid uint32) {
	n.mu.Lock()
	n.busy, n.since = pid, time.Now()
	n.mu.Unlock()
}

// settle waits until all jobs so far are done, or ctx ends.
func (n *naming) settle(ctx context.Context) {
	settled := make(chan struct{})
	select {
	case n.jobs <- func() { close(settled) }:
	case <-n.done:
		return
	case <-ctx.Done():
		return
	}
	select {
	case <-settled:
	case <-n.done:
	case <-ctx.Done():
	}
}

// slow is how long reading from a process may take before the user is told.
const slow = 5 * time.Second

// reading returns the process that is being read, and for how long, 0 for none.
func (n *naming) reading() (pid uint32, took time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.busy == 0 {
		return 0, 0
	}
	return n.busy, time.Since(n.since)
}

// note says which process keeps others from being named, "" for none.
func (n *naming) note() string {
	pid, took := n.reading()
	if took < slow {
		return ""
	}
	return fmt.Sprintf("reading names from process %d has taken %.0f s: new stacks have none meanwhile", pid, took.Seconds())
}

// stack has a stack's frames read and kept. Where there is no room the kernel
// side sends it again.
func (s *Session) stack(st *probes.Stack) {
	one := *st
	one.Words = append([]uint64(nil), st.Words...)
	ok := s.naming.add(one.Process.PID, func() {
		frames := s.capture.frames(&one)
		s.mu.Lock()
		kept := s.stacks.add(one.ID, one.Process, frames)
		s.mu.Unlock()
		if !kept {
			s.resend(one.Process.PID, one.ID)
		}
	})
	if !ok {
		s.naming.dropped.Add(1)
		s.resend(one.Process.PID, one.ID)
	}
}

// resend makes the kernel side send a stack again when it comes up again.
func (s *Session) resend(pid uint32, id uint64) {
	s.tracer.ForgetStacks([]uint64{id})
	s.capture.invalidate(pid)
}

// identity has the name of a process read, where no event told it, and the file
// that it runs.
func (s *Session) identity(id event.Process) {
	s.naming.add(id.PID, func() {
		name, program := s.capture.identity(id)
		s.mu.Lock()
		defer s.mu.Unlock()
		if x := s.procs.known[id]; x != nil {
			if x.name == "" {
				x.name = name
			}
			x.program = program
		}
	})
}
