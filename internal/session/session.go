// Package session runs one trace: Start puts the probes on, Snapshot says who
// holds what, Close takes the probes off. It wires probes, ledger and
// symbolizer together and holds no logic of theirs.
package session

import (
	"errors"
	"fmt"
	"slices"
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
	naming  *naming
	start   time.Time
	// boot is the wall-clock time at which CLOCK_MONOTONIC was zero.
	boot time.Time

	run      sync.WaitGroup // what ends with the probes
	ending   chan struct{}  // closed to end it
	gpus     *gpus
	readings *readings
	failed   chan error // Run's error, if it ends by itself

	closing sync.Once
	closed  error // once closing is done

	accounted   []*accountable // of the goroutine of readings, as the next
	accountedAt uint64         // events

	mu       sync.Mutex // guards what follows; never held while anything is waited for
	ledger   *ledger.Ledger
	stacks   stacks
	procs    processes
	recorder *recorder // nil: failures are only counted
	events   uint64
	seen     uint64 // CLOCK_MONOTONIC up to which every event has been seen
	target   string
	notes    []string
	stopped  time.Time // zero while the probes are on
}

// maxSites bounds the call sites that keep counters. With stacks of 60 frames
// each has its own.
const maxSites = 3 << 14

// Start puts the probes on and begins to collect. It returns when every call
// of the targets' from now on is seen. The caller must Close the session.
func Start(opts Options) (_ *Session, err error) {
	s := &Session{
		opts:   opts,
		sym:    symbolize.New(symbolize.ConfigFromEnv()),
		naming: newNaming(),
		boot:   bootTime(),
		ledger: ledger.New(ledger.Options{MaxLive: opts.MaxLive, MaxSites: maxSites}),
		stacks: newStacks(),
		procs:  newProcesses(opts.All),
		failed: make(chan error, 1),
		ending: make(chan struct{}),
	}
	s.capture = newCapturer(s.sym, opts)
	if opts.OutOfMemory != nil {
		s.recorder = &recorder{session: s, max: opts.OutOfMemoryMax, record: opts.OutOfMemory, open: map[threadKey]*incident{}}
	}
	go s.naming.run()
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if err := probes.CheckSeccomp(0, !opts.Follow && !opts.All); err != nil {
		return nil, err
	}
	for _, pid := range opts.PIDs {
		if err := CheckTarget(pid); err != nil {
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
	s.readings = newReadings(s.readGPUs, s.gpus.look)
	go s.readings.run()
	s.start = time.Now()
	if opts.All {
		s.target = "every process"
	}
	s.expect(opts.PIDs)
	s.run.Go(func() {
		if err := s.tracer.Run(handler{s}, s.idle); err != nil {
			s.failed <- err
		}
	})
	s.run.Go(func() { s.keep(s.ending) })
	if opts.All {
		if n := s.addAll(); n == 0 && prepared == 0 {
			s.warn("no process uses CUDA yet: waiting for one")
		}
	}
	for _, pid := range opts.PIDs {
		if err := s.add(pid); err != nil {
			return nil, err
		}
	}
	s.readings.ask()
	return s, nil
}

// idle is what the reader of events does between batches.
func (s *Session) idle(drained bool) {
	if drained {
		s.mu.Lock()
		s.seen = max(s.seen, monotonic())
		s.mu.Unlock()
	}
	s.recorder.finish(time.Now())
}

func (s *Session) warn(text string) {
	s.mu.Lock()
	s.notes = append(s.notes, text)
	if n := len(s.notes) - maxNotes; n > 0 {
		s.notes = slices.Delete(s.notes, 0, n)
	}
	s.mu.Unlock()
	if s.opts.Warn != nil {
		s.opts.Warn(text)
	}
}

// maxNotes bounds the warnings that a snapshot repeats: the last ones.
const maxNotes = 100

// Done is closed when every target, and every child of theirs that is traced,
// has ended. With All it never is.
func (s *Session) Done() <-chan struct{} { return s.procs.done }

// Failed delivers an error after which nothing more is collected.
func (s *Session) Failed() <-chan error { return s.failed }

// Target says what is traced, such as "pid 4711 (python3)".
func (s *Session) Target() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.target
}

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
	err := s.tracer.Stop()
	close(s.ending)
	s.run.Wait()
	s.recorder.finishAll()
	s.run.Wait()
	return err
}

// Close stops and releases everything, once. What is in use by something that
// does not answer is left to the end of this process.
func (s *Session) Close() error {
	s.closing.Do(func() { s.closed = s.close() })
	return s.closed
}

func (s *Session) close() error {
	err := s.Stop()
	if s.readings != nil && s.readings.stop() {
		err = errors.Join(err, s.gpus.close())
	}
	if !s.naming.stop() {
		pid, _ := s.naming.reading()
		return errors.Join(err, fmt.Errorf("process %d does not answer: the trace is not closed", pid))
	}
	if s.tracer != nil {
		err = errors.Join(err, s.tracer.Close())
	}
	err = errors.Join(err, s.capture.close())
	s.sym.Close()
	return err
}

// handler keeps the methods that the tracer calls off Session's surface.
type handler struct{ *Session }

func (h handler) Event(e *event.Event) {
	h.mu.Lock()
	h.events++
	h.seen = max(h.seen, e.Time)
	if (e.Op == event.OpSuspect || e.Op == event.OpGraphInstantiate) && e.Result == event.Success {
		h.gpus.suspect(e)
	}
	if e.Op <= event.OpExit && e.Op != event.OpNone {
		h.ledger.Apply(e)
	}
	if _, known := h.procs.known[e.Proc]; !known || e.Op == event.OpExec {
		h.identity(e.Proc)
	}
	for _, id := range h.procs.event(e) {
		h.ended(id, e)
	}
	h.mu.Unlock()
	h.recorder.observe(e)
	switch e.Op {
	case event.OpExec:
		h.capture.replaced(e.Proc.PID)
		h.renew(e.Proc.PID)
	case event.OpExit:
		h.capture.ended(e.Proc.PID)
		h.renew(e.Proc.PID)
	case event.OpFork:
		h.capture.forked(e.Proc.PID, e.Child.PID)
		h.renew(e.Child.PID)
	}
}

func (h handler) Stack(st *probes.Stack) { h.stack(st) }

// renew makes the names of what comes of pid be looked up in its new mappings.
// Stacks of the old ones that still wait for their names are looked up before.
func (s *Session) renew(pid uint32) {
	forget := func() { s.sym.Forget(pid) }
	if !s.naming.add(pid, forget) {
		forget()
	}
}

// ended follows the end of a process, which e tells: by being its exit, or by
// showing that its exit was lost. s.mu is held.
func (s *Session) ended(id event.Process, e *event.Event) {
	if e.Op != event.OpExit || e.Proc != id {
		s.ledger.Apply(&event.Event{Op: event.OpExit, Time: e.Time, Proc: id})
	}
	if s.opts.All {
		s.ledger.Release(id)
	}
	s.forget(s.procs.end(id, e.Time, s.ledger.Active(id)))
}
