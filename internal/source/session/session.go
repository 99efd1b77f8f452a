// Package session runs one trace: Start puts the probes on, Snapshot returns the memory in use, Close
// removes the probes. It starts and stops the sources and passes their records on.
//
// The way of an event: probes.Tracer.Run calls handler.Event, which calls store.apply. That appends
// the event to the recording and applies it to the state. If the state now wants something, such as a
// reading of the GPUs, sources.request asks for it, and its record comes the same way later.
//
// A starter adds the processes to trace. A keeper does what no event starts. Views are in views.go.
package session

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/atomicfile"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/source/clock"
	"github.com/gpumemtrace/gpumemtrace/internal/source/frames"
	"github.com/gpumemtrace/gpumemtrace/internal/source/gpu"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
	"github.com/gpumemtrace/gpumemtrace/internal/source/unwind"
	"github.com/gpumemtrace/gpumemtrace/internal/source/work"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// Options configure a Session.
type Options struct {
	PIDs    []int
	All     bool
	Follow  bool
	Tensors bool // the tensor layer too
	// Windows, with Tensors, limits that layer to windows.
	Windows WindowOptions
	// FreeStacks makes the frees of tensors have stacks too.
	FreeStacks bool
	API        probes.API
	MaxLive    int // see ledger.Options; 0 for its default
	// Layout makes state.Want.Layout possible, with the latest Remember changes.
	Layout   bool
	Remember int
	// Held says that the only target has not run yet. Then there is no warning that it uses
	// no CUDA library.
	Held   bool
	Stacks unwind.Mode // "" is unwind.Auto
	// NoMemo unwinds every stack in full. If VerifyStacks is n and not 0, one in n memoized
	// stacks is also unwound in full, and compared.
	NoMemo       bool
	VerifyStacks uint32
	// CacheDir stores unwind tables for later runs, "" for none.
	CacheDir string
	// OutOfMemory, if set, receives at most OutOfMemoryMax failures for want of memory, one
	// at a time, within seconds.
	OutOfMemory    func(*state.Incident)
	OutOfMemoryMax int
	// Recording, if set, is the file for all records. Start sets the Keyframe of
	// RecordingOptions.
	Recording        string
	ForceRecording   bool // replaces a file that is there
	RecordingOptions record.WriterOptions
	// Heaps says when the heaps of Python programs are read.
	Heaps HeapOptions
	// GPUMemory makes each reading have the memory of the GPUs too.
	GPUMemory bool
	// RequireCUDA makes Start fail for a process that maps no CUDA library.
	RequireCUDA bool
	// Warn receives sentences for the user, from any goroutine.
	Warn func(string)
	// Loss, if set, returns losses of the caller, to show with the others. It does not wait.
	Loss func() []loss.Counter
	// Version and CommandLine are copied into every snapshot.
	Version, CommandLine string
}

// A Session is one running trace.
type Session struct {
	*sources
	keeper keeper
	meter  work.Meter  // of the work for the traced processes
	heaps  *heapReader // nil if no heap is read

	run     sync.WaitGroup // goroutines that end with the probes
	ending  chan struct{}  // closed to end them
	failed  chan error     // Run's error, if it ends by itself
	closing sync.Once
	closed  error // once closing is done

}

// newSession returns a session that is not started.
func newSession(opts Options) *Session {
	s := &Session{failed: make(chan error, 1), ending: make(chan struct{})}
	s.sources = &sources{opts: opts, store: newStore(record.Trace{
		Version: opts.Version, CommandLine: opts.CommandLine, All: opts.All, MaxLive: opts.MaxLive,
		// The time at which CLOCK_MONOTONIC was zero, without the monotonic clock, which a
		// recording does not have.
		Boot:    time.Now().Round(0).Add(-clock.Monotonic()),
		Initial: proc.InitialPIDNamespace(), APIs: probes.APINames(), Driver: proc.DriverVersion(),
	})}
	s.fetch = s.request
	s.sheds.why = map[probes.Consumer]string{}
	s.keeper.sources, s.keeper.meter = s.sources, &s.meter
	s.heaps = newHeapReader(s, opts.Heaps)
	if opts.Layout {
		s.state.Remember(opts.Remember)
	}
	if opts.OutOfMemory != nil {
		s.trace.Incidents = opts.OutOfMemoryMax
	}
	s.frames = frames.New(unwind.NewCapture(opts.Stacks, unwind.Options{
		Modules: opts.Tensors && opts.Heaps.Every > 0, Meter: &s.meter, NoMemo: opts.NoMemo, VerifyStacks: opts.VerifyStacks, CacheDir: opts.CacheDir, First: opts.PIDs}), s.apply)
	return s
}

// Start puts the probes on and begins to collect. When it returns, it sees every call of the targets.
// The caller must Close the session.
func Start(opts Options) (_ *Session, err error) {
	defer collectRarely()()
	s := newSession(opts)
	var folder *atomicfile.Dir // of the recording
	defer func() {
		if err != nil {
			s.Close()
		}
		if folder != nil {
			if err != nil {
				_ = folder.Remove(filepath.Base(opts.Recording)) // it has no event
			}
			folder.Close()
		}
	}()
	if err := s.check(); err != nil {
		return nil, err
	}
	s.trace.Physical = s.watchesKernel(proc.DriverLoaded())
	if opts.Recording != "" {
		if folder, err = s.openRecording(); err != nil {
			return nil, err
		}
	}
	gpus := gpu.OpenReader(s.subjects, func(r *record.Reading) { s.apply(r) }, monotonic)
	if s.tracer, err = probes.Open(probes.Options{
		API: opts.API, All: opts.All, Follow: opts.Follow, Ahead: true, Kernel: s.trace.Physical,
		Tensors: opts.Tensors, Windows: opts.Windows.wanted(), FreeStacks: opts.FreeStacks,
		Warn: s.warn, Stacks: s.frames, Meter: &s.meter,
	}); err != nil {
		return nil, err
	}
	s.frames.Resend(s.tracer.ForgetStacks)
	mode, warning := s.frames.Describe()
	if warning != "" {
		s.warn(warning)
	}
	s.readGPUs(gpus)
	s.retrace(func(t *record.Trace) {
		t.StackMode, t.Start = mode, time.Now().Round(0)
		if opts.All {
			t.Target = "every process"
		}
	})
	windows := windowOpener{s.sources}
	windows.announce()
	start := &starter{s.sources, s.ending}
	start.expect()
	s.run.Go(func() {
		h := &handler{sources: s.sources, heaps: s.heaps}
		if err := s.tracer.Run(h, h.afterBatch); err != nil {
			s.failed <- err
		}
	})
	s.run.Go(func() { s.keeper.run(s.ending, &s.run) })
	s.run.Go(func() { s.heaps.run(s.ending) })
	if err := start.addTargets(s.tracer.Prepared()); err != nil {
		return nil, err
	}
	s.run.Go(func() { windows.run(s.ending) })
	s.ask()
	go start.mend() // not waited for: it reads targets' file systems
	return s, nil
}

const (
	// startGC is the garbage collector's percentage during a start, which makes much garbage, and for
	// which somebody waits. At 25 a start takes a sixth longer.
	startGC = 100
	// startMemory is the memory, in bytes, near which garbage is collected more often all the same. It is
	// reached only where unwind tables are made by several processors.
	startMemory = 128 << 20
)

// collectRarely sets startGC and startMemory until restore, unless the collector runs less often already.
func collectRarely() (restore func()) {
	usual, limit := debug.SetGCPercent(startGC), debug.SetMemoryLimit(-1)
	if usual < 0 || usual > startGC {
		debug.SetGCPercent(usual)
	} else {
		debug.SetMemoryLimit(min(limit, startMemory))
	}
	return func() {
		debug.SetGCPercent(usual)
		debug.SetMemoryLimit(limit)
	}
}

// check returns an error if tracing is impossible, before anything is loaded.
func (s *Session) check() error {
	if err := probes.CheckSeccomp(0, !s.opts.Follow && !s.opts.All); err != nil {
		return err
	}
	for _, pid := range s.opts.PIDs {
		if err := probes.CheckTarget(pid); err != nil {
			return err
		}
	}
	return nil
}

// openRecording starts the recording of the options. If it returns a folder and an error, the caller
// must remove the file.
func (s *Session) openRecording() (*atomicfile.Dir, error) {
	folder, err := atomicfile.OpenDir(filepath.Dir(s.opts.Recording))
	if err != nil {
		return nil, fmt.Errorf("record to %s: %w", s.opts.Recording, err)
	}
	file, err := folder.Create(filepath.Base(s.opts.Recording), s.opts.ForceRecording)
	if err != nil {
		folder.Close()
		return nil, fmt.Errorf("record to %s: %w", s.opts.Recording, err)
	}
	s.opts.RecordingOptions.Keyframe = s.state.Keyframe
	if s.writer, err = record.Create(file, s.opts.RecordingOptions); err != nil {
		err = errors.Join(err, file.Close())
	}
	return folder, err
}

// Measure makes the kernel measure the BPF programs for d: see probes.Tracer.
func (s *Session) Measure(ctx context.Context, d time.Duration) error {
	return s.tracer.Measure(ctx, d)
}

// RunTime returns the sum of what Measure measured so far.
func (s *Session) RunTime() probes.RunTime { return s.tracer.RunTime() }

// NotSeen returns the processes that use CUDA and are not traced, or not in full.
func (s *Session) NotSeen() []probes.NotSeen { return s.tracer.NotSeen() }

// Failed delivers the error that ended the collection of events.
func (s *Session) Failed() <-chan error { return s.failed }

// Stop removes the probes and waits until all of their events were applied. The session can still
// make snapshots.
func (s *Session) Stop() error {
	s.mu.Lock()
	again := s.stopped
	s.stopped = true
	s.mu.Unlock()
	if s.tracer == nil || again {
		return nil
	}
	s.heaps.end()
	at := monotonic()
	err := s.tracer.Stop()
	close(s.ending)
	s.run.Wait()
	s.ask()
	if s.opts.Tensors && !locked(s.store, (*state.State).SawTensors) {
		in := ""
		if s.opts.Windows.wanted() {
			in = " in windows (--tensors-window)"
		}
		s.warn("no tensors were seen" + in + ": no traced process had PyTorch's own allocator hand out memory on a GPU (with backend:cudaMallocAsync, and with an allocator that is plugged in, each tensor is an allocation of CUDA's)")
	}
	s.apply(moment(at, true))
	if s.recorder() != nil || s.opts.OutOfMemory != nil { // there may be no view any more
		s.keeper.complete(true)
	}
	return err
}

// Close stops the trace and releases everything. Further calls return the same error. If something does
// not answer, the end of this process releases the rest.
func (s *Session) Close() error {
	s.closing.Do(func() {
		err := s.Stop()
		if s.gpus != nil {
			err = errors.Join(err, s.gpus.Close())
		}
		if s.tracer != nil {
			err = errors.Join(err, s.tracer.Close())
		}
		err = errors.Join(err, s.frames.Close())
		if w := s.recorder(); w != nil {
			err = errors.Join(err, w.Close())
		}
		s.closed = err
	})
	return s.closed
}

// A handler applies the tracer's events, in one goroutine.
type handler struct {
	*sources
	heaps *heapReader
	quiet bool // no event came since the last moment
}

func (h *handler) Event(e *event.Event) {
	h.quiet = false
	h.apply(e)
	h.heaps.event(e)
}

func (h *handler) Stack(st *probes.Stack) { h.frames.Stack(st) }

func (h *handler) afterBatch(until time.Duration) { h.quiet = h.store.afterBatch(until, h.quiet) }
