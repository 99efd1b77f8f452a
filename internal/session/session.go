// Package session runs one trace: Start puts the probes on, Snapshot says who
// holds what, Close takes the probes off. It wires probes, ledger and
// symbolizer together and holds no logic of theirs.
package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
	"github.com/gpumemtrace/gpumemtrace/internal/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
	"github.com/gpumemtrace/gpumemtrace/probes"
	"github.com/gpumemtrace/gpumemtrace/symbolize"
)

// Options configure a Session.
type Options struct {
	PIDs    []int
	All     bool
	Follow  bool
	API     probes.API
	MaxLive int            // see ledger.Options; 0 for its default
	Native  symbolize.Mode // which native frames a stack with Python frames shows
	// Held says that the only target has not run yet: that it uses no CUDA
	// library is no news.
	Held   bool
	Stacks StackMode // "" is StacksAuto
	// Residual puts what the driver reports beyond the traced allocations into
	// snapshots, under synthetic frames.
	Residual bool
	// NoMemo unwinds every stack in full; VerifyStacks, when it is not 0, does
	// so for every so many memoized ones and compares.
	NoMemo       bool
	VerifyStacks uint32
	// OutOfMemory, if set, receives at most OutOfMemoryMax failures for want of
	// memory, each from a goroutine of its own within a second.
	OutOfMemory    func(*snapshot.OutOfMemory)
	OutOfMemoryMax int
	// RequireCUDA makes Start fail for a process that maps no CUDA library.
	RequireCUDA bool
	// Warn receives sentences for the user, from any goroutine.
	Warn func(string)
	// Meta's Version and CommandLine are copied into every snapshot.
	Version, CommandLine string
}

// A Session is one running trace.
type Session struct {
	opts    Options
	tracer  *probes.Tracer
	sym     *symbolize.Symbolizer
	capture *capturer
	start   time.Time
	// boot is the wall-clock time at which CLOCK_MONOTONIC was zero.
	boot   time.Time
	target string

	run     sync.WaitGroup
	gpus    *gpus
	keeping context.CancelFunc // ends keepAccounts

	observing   sync.Mutex // guards the next two
	accounted   []*accountable
	accountedAt uint64 // events

	failed chan error // Run's error, if it ends by itself
	reaper reaper     // of Run's goroutine

	mu       sync.Mutex // guards what follows
	ledger   *ledger.Ledger
	stacks   stacks
	procs    processes
	recorder *recorder // nil: failures are only counted
	events   uint64
	notes    []string
	stopped  time.Time // zero while the probes are on
}

// Start puts the probes on and begins to collect. It returns when every call
// of the targets' from now on is seen. The caller must Close the session.
func Start(opts Options) (_ *Session, err error) {
	s := &Session{
		opts:   opts,
		sym:    symbolize.New(symbolize.ConfigFromEnv()),
		boot:   bootTime(),
		ledger: ledger.New(ledger.Options{MaxLive: opts.MaxLive}),
		stacks: newStacks(),
		procs:  newProcesses(),
		failed: make(chan error, 1),
	}
	s.capture = newCapturer(s.sym, opts)
	if opts.OutOfMemory != nil {
		s.recorder = &recorder{session: s, max: opts.OutOfMemoryMax, record: opts.OutOfMemory, open: map[threadKey]*incident{}}
	}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	for _, pid := range opts.PIDs {
		if err := checkTarget(pid); err != nil {
			return nil, err
		}
	}
	tracing := probes.Options{API: opts.API, All: opts.All, Follow: opts.Follow, Warn: s.warn, Mapped: s.capture.mapped}
	if opts.Stacks != StacksFramePointer {
		tracing.Exit = s.capture.loader.Exit
	}
	if s.tracer, err = probes.Open(tracing); err != nil {
		return nil, err
	}
	warning, err := s.capture.loaded(opts.Stacks)
	if err != nil {
		return nil, err
	}
	if warning != "" {
		s.warn(warning)
	}
	prepared, err := s.tracer.Prepare()
	if err != nil {
		return nil, err
	}
	var why string
	if s.gpus, why = openGPUs(); why != "" {
		s.warn(why)
	}
	s.start = time.Now()
	s.run.Go(func() {
		if err := s.tracer.Run(handler{s}, s.idle); err != nil {
			s.failed <- err
		}
	})
	if opts.All {
		pids, err := s.tracer.TargetAll()
		if err != nil {
			return nil, err
		}
		s.target = "every process"
		if len(pids) == 0 && prepared == 0 {
			s.warn("no process uses CUDA yet: waiting for one")
		}
	}
	for _, pid := range opts.PIDs {
		if err := s.add(pid); err != nil {
			return nil, err
		}
	}
	s.observe()
	ctx, cancel := context.WithCancel(context.Background())
	s.keeping = cancel
	s.run.Go(func() { s.keepAccounts(ctx) })
	return s, nil
}

// idle is what there is to do between events.
func (s *Session) idle() {
	now := time.Now()
	s.recorder.finish(now)
	handler{s}.reap(now)
}

// add traces one more process.
func (s *Session) add(pid int) error {
	s.mu.Lock()
	s.procs.expect(pid)
	s.mu.Unlock()
	// Analysed before it is probed: its first stack is complete.
	if err := s.capture.analyse(context.Background(), pid); err != nil && !gone(err) {
		s.warn(fmt.Sprintf("the first stacks of process %d may be incomplete: %v", pid, err))
	}
	libs, err := s.tracer.Target(pid)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("trace process %d: it has exited", pid)
	}
	if err != nil {
		return err
	}
	name := comm(pid)
	if s.target != "" {
		s.target += ", "
	}
	s.target += fmt.Sprintf("pid %d (%s)", pid, name)
	if len(libs) == 0 {
		s.mu.Lock()
		s.procs.fromStart[uint32(pid)] = true
		s.mu.Unlock()
		if s.opts.RequireCUDA {
			return fmt.Errorf("trace process %d (%s): it uses no CUDA library; without --require-cuda gpumemtrace waits for it to load one", pid, name)
		}
		if !s.opts.Held {
			s.warn(fmt.Sprintf("process %d (%s) uses no CUDA library yet: waiting for it to load one", pid, name))
		}
	}
	// An exit between the check and the probes left no event.
	if ended(pid) {
		return fmt.Errorf("trace process %d: it has exited", pid)
	}
	return nil
}

func (s *Session) warn(text string) {
	s.mu.Lock()
	if len(s.notes) < 100 {
		s.notes = append(s.notes, text)
	}
	s.mu.Unlock()
	if s.opts.Warn != nil {
		s.opts.Warn(text)
	}
}

// Done is closed when every target, and every child of theirs that is traced,
// has ended. With All it never is.
func (s *Session) Done() <-chan struct{} { return s.procs.done }

// Failed delivers an error after which nothing more is collected.
func (s *Session) Failed() <-chan error { return s.failed }

// Target says what is traced, such as "pid 4711 (python3)".
func (s *Session) Target() string { return s.target }

// Stop takes the probes off and waits until what they saw is counted. The
// session can still be asked for snapshots.
func (s *Session) Stop() error {
	s.mu.Lock()
	again := !s.stopped.IsZero()
	if !again {
		s.stopped = time.Now()
	}
	s.mu.Unlock()
	if s.tracer == nil || again {
		return nil
	}
	if s.keeping != nil {
		s.keeping()
	}
	err := s.tracer.Stop()
	s.run.Wait()
	s.recorder.finishAll()
	s.run.Wait()
	return err
}

// Close stops and releases everything.
func (s *Session) Close() error {
	err := s.Stop()
	if s.tracer != nil {
		err = errors.Join(err, s.tracer.Close())
	}
	err = errors.Join(err, s.capture.close())
	if s.gpus != nil {
		err = errors.Join(err, s.gpus.close())
	}
	s.sym.Close()
	return err
}

// handler keeps the methods that the tracer calls off Session's surface.
type handler struct{ *Session }

func (h handler) Event(e *event.Event) {
	h.mu.Lock()
	h.events++
	if e.Op == event.OpSuspect && e.Result == event.Success {
		h.gpus.suspect(e)
	} else if e.Op <= event.OpExit && e.Op != event.OpNone {
		h.ledger.Apply(e)
	}
	h.procs.event(e)
	h.mu.Unlock()
	h.recorder.observe(e)
	// Addresses located before stay valid; what comes now has other mappings.
	switch e.Op {
	case event.OpExec, event.OpExit:
		h.capture.ended(e.Proc.PID)
	case event.OpFork:
		h.gpus.forget(e.Child.PID)
		h.capture.mapped(int(e.Child.PID))
	}
}

func (h handler) Stack(st *probes.Stack) {
	frames := h.capture.frames(st) // without the lock: it reads the process
	h.mu.Lock()
	h.stacks.add(st.ID, frames)
	h.mu.Unlock()
}
