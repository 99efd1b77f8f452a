package session

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/source/frames"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// addPatience bounds how long the start waits until the running processes are added. Processes that
// take longer are added later, while the trace runs.
const addPatience = 20 * time.Second

// A starter starts to trace the processes of the options.
type starter struct {
	*sources
	end <-chan struct{} // closed when the trace ends
}

// addTargets adds the processes of the options. prepared is the number of libraries that have probes already.
func (s *starter) addTargets(prepared int) error {
	if s.opts.All {
		if n := s.addAll(); n == 0 && prepared == 0 {
			s.warn("no process uses CUDA yet: waiting for one")
		}
	}
	for _, pid := range s.opts.PIDs {
		if err := s.add(pid); err != nil {
			return err
		}
	}
	return nil
}

// add adds a process that the user named and, with Follow, its children.
func (s *starter) add(pid int) error {
	if err := s.trace(pid, s.opts.Held); err != nil {
		return err
	}
	target := fmt.Sprintf("pid %d (%s)", pid, proc.Comm(pid))
	if s.opts.Follow && !s.opts.Held {
		switch n := s.addChildren(pid); n {
		case 0:
		case 1:
			target += " and its child process"
		default:
			target += fmt.Sprintf(" and %d child processes", n)
		}
	}
	s.retrace(func(t *record.Trace) {
		if t.Target != "" {
			t.Target += ", "
		}
		t.Target += target
	})
	return nil
}

// expect makes the trace last until the processes that the user named have ended. It comes before they
// are traced. A library of a held command may have allocated memory already. If NVML lists every
// process, its reading shows that memory. Otherwise the command counts as traced from its start.
func (s *starter) expect() {
	fromStart := s.opts.Held && (s.gpus == nil || !s.store.trace.Initial)
	for _, pid := range s.opts.PIDs {
		if id, err := s.tracer.Identify(pid); err == nil {
			s.apply(&record.Process{Process: id, Target: true, FromStart: fromStart})
		}
	}
}

// addChildren adds the processes below pid and returns their number. The kernel side adds those that
// start later.
func (s *starter) addChildren(pid int) int {
	n := 0
	for wait := []int{pid}; len(wait) > 0; wait = wait[1:] {
		for _, child := range proc.Children(wait[0]) {
			if s.knows(child) || !s.traceOther(child) {
				continue
			}
			n++
			wait = append(wait, child)
		}
	}
	return n
}

// traceOther adds a process that the user did not name, and reports whether it did. It warns of an
// error, unless the process has ended.
func (s *starter) traceOther(pid int) bool {
	err := s.trace(pid, true)
	if err != nil && !frames.Gone(err) {
		s.warn(err.Error())
	}
	return err == nil
}

// addAll adds the processes that use CUDA already, and returns their number. It adds those of all
// users in parallel: a file that does not answer delays only the processes of one user.
func (s *starter) addAll() int {
	var n atomic.Int64
	var users sync.WaitGroup
	for _, pids := range probes.ProcessesByUser() {
		users.Go(func() {
			for _, pid := range pids {
				if s.ending() {
					return
				}
				if probes.UsesCUDA(pid) && s.traceOther(pid) {
					n.Add(1)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		users.Wait()
	}()
	select {
	case <-done:
	case <-time.After(addPatience):
	}
	return int(n.Load())
}

func (s *starter) ending() bool {
	select {
	case <-s.end:
		return true
	default:
		return false
	}
}

// knows reports whether a process is traced already.
func (s *starter) knows(pid int) bool {
	id, err := s.tracer.Identify(pid)
	s.mu.Lock()
	defer s.mu.Unlock()
	return err == nil && s.state.Knows(id)
}

// trace adds a process. With quiet there is no warning if the process uses no CUDA library yet. The
// error is os.ErrNotExist for a process that has ended.
func (s *starter) trace(pid int, quiet bool) error {
	ended := fmt.Errorf("trace process %d: it has exited: %w", pid, os.ErrNotExist)
	id, err := s.tracer.Identify(pid)
	if errors.Is(err, os.ErrNotExist) {
		return ended
	} else if err != nil {
		return err
	}
	name := proc.Comm(pid)
	s.apply(&record.Process{Process: id, Target: true, Name: name})
	s.frames.Identify(id)
	// The analysis comes before the probes, so that the first stack is complete.
	if err := s.frames.Analyze(pid); err != nil && !frames.Gone(err) {
		s.warn(fmt.Sprintf("the first stacks of process %d may be incomplete: %v", pid, err))
	}
	libs, err := s.tracer.Target(pid)
	// An exit between Identify and Target left no event.
	if errors.Is(err, os.ErrNotExist) || gone(id) {
		s.apply(&event.Event{Op: event.OpExit, Time: monotonic(), Proc: id})
		return ended
	}
	if err != nil || len(libs) > 0 {
		return err
	}
	s.apply(&record.Process{Process: id, Target: true, FromStart: true})
	if s.opts.RequireCUDA {
		return fmt.Errorf("trace process %d (%s): it uses no CUDA library; without --require-cuda gpumemtrace waits for it to load one", pid, name)
	}
	if !quiet {
		s.warn(fmt.Sprintf("process %d (%s) uses no CUDA library yet: waiting for it to load one", pid, name))
	}
	return nil
}

// mend removes breakpoints that a killed tracer left in any process. If the kernel does not say to whom
// breakpoints belong, mend removes none. A breakpoint at a probe of this trace then goes together with
// the probe. Those of debuggers stay.
func (s *starter) mend() {
	all, accounted := probes.Leftovers(proc.All())
	found := probes.LeftBehind(all)
	if len(found) == 0 || !accounted || s.ending() {
		return // a later trace may remove them
	}
	mended, err := probes.Mend(found)
	if mended > 0 {
		processes := map[int]bool{}
		for _, l := range found {
			processes[l.PID] = true
		}
		s.warn(fmt.Sprintf("%d processes had breakpoints that a tracer which was killed left behind, such as %s in process %d: they are removed", len(processes), found[0].Function, found[0].PID))
	}
	if err != nil {
		s.warn(err.Error())
	}
}
