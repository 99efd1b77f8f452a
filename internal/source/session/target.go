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
	"github.com/gpumemtrace/gpumemtrace/internal/source/unwind"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// addTargets traces what the user named. prepared is how many libraries have
// probes already.
func (s *Session) addTargets(prepared int) error {
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

// add traces one more process that the user named and, if asked to follow, the
// children that it has already.
func (s *Session) add(pid int) error {
	if err := s.follow(pid, s.opts.Held); err != nil {
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
	s.mu.Lock()
	if s.trace.Target != "" {
		s.trace.Target += ", "
	}
	s.trace.Target += target
	s.mu.Unlock()
	s.retell()
	return nil
}

// expect makes the trace last until the processes that the user named have
// ended, those included that are not traced yet. Whether a library that a held
// command links has allocated already, NVML tells where it lists every process;
// elsewhere none is taken to have.
func (s *Session) expect(pids []int) {
	fromStart := s.opts.Held && (s.gpus == nil || !s.trace.Initial)
	for _, pid := range pids {
		if id, err := s.tracer.Identify(pid); err == nil {
			s.apply(&record.Process{Process: id, Target: true, FromStart: fromStart})
		}
	}
}

// addChildren traces the processes below pid and returns how many there are.
// Those that any of them starts from here on follow by themselves.
func (s *Session) addChildren(pid int) int {
	n := 0
	for wait := []int{pid}; len(wait) > 0; wait = wait[1:] {
		for _, child := range proc.Children(wait[0]) {
			if s.isTraced(child) {
				continue
			}
			// One that ends meanwhile, or is not ours to trace, is no reason
			// to leave the others out.
			if err := s.follow(child, true); err != nil {
				if !frames.Gone(err) {
					s.warn(err.Error())
				}
				continue
			}
			n++
			wait = append(wait, child)
		}
	}
	return n
}

// addPatience bounds how long a trace that begins waits for the processes that run. Those
// of a user that are not done by then are traced as soon as can be.
const addPatience = 20 * time.Second

// addAll traces the processes that use CUDA already, and returns how many. The users'
// are traced side by side: one whose files do not answer keeps no other's waiting.
func (s *Session) addAll() int {
	var n atomic.Int64
	var users sync.WaitGroup
	for _, pids := range probes.ProcessesByUser() {
		users.Go(func() {
			for _, pid := range pids {
				select {
				case <-s.ending:
					return
				default:
				}
				if !probes.UsesCUDA(pid) {
					continue
				}
				if err := s.follow(pid, true); err == nil {
					n.Add(1)
				} else if !frames.Gone(err) {
					s.warn(err.Error())
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

func (s *Session) isTraced(pid int) bool {
	id, err := s.tracer.Identify(pid)
	s.mu.Lock()
	defer s.mu.Unlock()
	return err == nil && s.state.Knows(id)
}

// follow traces one process. quiet says that it is no news if it uses no CUDA
// library yet. The error is os.ErrNotExist for a process that is gone.
func (s *Session) follow(pid int, quiet bool) error {
	id, err := s.tracer.Identify(pid)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("trace process %d: it has exited: %w", pid, os.ErrNotExist)
	} else if err != nil {
		return err
	}
	name := proc.Comm(pid)
	s.apply(&record.Process{Process: id, Target: true, Name: name})
	s.frames.Identify(id)
	// Analysed before it is probed: its first stack is complete.
	if err := s.frames.Analyze(pid); err != nil && !frames.Gone(err) {
		s.warn(fmt.Sprintf("the first stacks of process %d may be incomplete: %v", pid, err))
	}
	libs, err := s.tracer.Target(pid)
	// An exit between the look and the probes left no event.
	if errors.Is(err, os.ErrNotExist) || gone(id) {
		s.apply(&event.Event{Op: event.OpExit, Time: monotonic(), Proc: id})
		return fmt.Errorf("trace process %d: it has exited: %w", pid, os.ErrNotExist)
	}
	if err != nil {
		return err
	}
	if len(libs) > 0 {
		return nil
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

// mend removes breakpoints that a tracer which was killed left behind in any process.
// Where the kernel does not tell whose breakpoints there are, only those go that lie
// where this trace has probes, when these come off.
func (s *Session) mend() {
	found, accounted := probes.Leftovers(proc.All(), unwind.PythonPlaces)
	if len(found) == 0 || !accounted {
		return
	}
	select {
	case <-s.ending:
		return // the next trace does it
	default:
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
