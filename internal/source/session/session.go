// Package session runs one trace: Start puts the probes on, Snapshot says who
// holds what, Close takes the probes off. It starts and stops the sources and
// pumps what they say into the state; it holds no logic of theirs.
package session

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/atomicfile"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
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
	probes.TensorOptions
	// FreeStacks: a stack is taken where a tensor is freed, too.
	FreeStacks bool
	API        probes.API
	MaxLive    int // see ledger.Options; 0 for its default
	// Layout: state.Want.Layout has the latest Remember changes. Without it there is none.
	Layout   bool
	Remember int
	// Held says that the only target has not run yet: that it uses no CUDA
	// library is no news.
	Held   bool
	Stacks unwind.Mode // "" is unwind.Auto
	// NoMemo unwinds every stack in full; VerifyStacks, when it is not 0, does
	// so for every so many memoized ones and compares.
	NoMemo       bool
	VerifyStacks uint32
	// CacheDir is where unwind tables are kept for later runs, "" for nowhere.
	CacheDir string
	// OutOfMemory, if set, receives at most OutOfMemoryMax failures for want of
	// memory, one at a time, within seconds.
	OutOfMemory    func(*state.Incident)
	OutOfMemoryMax int
	// Recording, if set, is a file that every record is written to, and
	// RecordingOptions how; but for its Keyframe, which is the state's.
	Recording        string
	ForceRecording   bool // replaces a file that is there
	RecordingOptions record.WriterOptions
	// GPUMemory: each GPU's memory is read whenever the driver's figures are.
	GPUMemory bool
	// RequireCUDA makes Start fail for a process that maps no CUDA library.
	RequireCUDA bool
	// Warn receives sentences for the user, from any goroutine.
	Warn func(string)
	// Loss, if set, is what else is lost, of who uses the session. It waits for nothing.
	Loss func() []loss.Counter
	// Version and CommandLine are copied into every snapshot.
	Version, CommandLine string
}

// A Session is one running trace.
type Session struct {
	opts   Options
	tracer *probes.Tracer
	frames *frames.Source
	gpus   *gpu.Reader // nil without NVML

	run     sync.WaitGroup // what ends with the probes
	ending  chan struct{}  // closed to end it
	done    chan struct{}  // closed when every target has ended
	failed  chan error     // Run's error, if it ends by itself
	closing sync.Once
	closed  error // once closing is done

	spelling atomic.Bool  // one goroutine does
	told     *record.Loss // what spell told last, of its goroutine
	figured  atomic.Bool  // totals were asked for: see Totals
	summing  sync.Mutex   // guards sums, before mu
	sums     state.Sums

	allocators allocators
	meter      work.Meter // of what is done for the traced processes

	mu       sync.Mutex // guards what follows; never held while anything is waited for
	state    *state.State
	users    *users
	trace    record.Trace
	over     bool                       // done is closed
	stopped  bool                       // the probes are off, or about to be
	writer   *record.Writer             // nil without a recording
	recorded []loss.Counter             // of recordings that are closed
	failing  bool                       // the disk did not take a recording, and the user knows
	shed     map[probes.Consumer]string // see Shed
	shrink   bool                       // stacks that nothing refers to are to go, however few
	awaited  uint64                     // somebody waits for the events from before: CLOCK_MONOTONIC
}

// Start puts the probes on and begins to collect. It returns when every call
// of the targets' from now on is seen. The caller must Close the session.
func Start(opts Options) (_ *Session, err error) {
	s := &Session{opts: opts, state: state.New(), users: newUsers(), shed: map[probes.Consumer]string{}, allocators: allocators{told: map[allocatorOf]record.Allocator{}}, failed: make(chan error, 1), ending: make(chan struct{}), done: make(chan struct{})}
	if opts.Layout {
		s.state.Remember(opts.Remember)
	}
	s.trace = record.Trace{
		Version: opts.Version, CommandLine: opts.CommandLine, Boot: bootTime(), All: opts.All,
		Initial: proc.InitialPIDNamespace(), MaxLive: opts.MaxLive, APIs: probes.APINames(),
		Driver: proc.DriverVersion(),
	}
	if opts.OutOfMemory != nil {
		s.trace.Incidents = opts.OutOfMemoryMax
	}
	var recordings *atomicfile.Dir
	meter := &s.meter
	s.frames = frames.New(&unwind.Taker{Mode: opts.Stacks, Options: unwind.Options{Meter: meter, NoMemo: opts.NoMemo, VerifyStacks: opts.VerifyStacks, CacheDir: opts.CacheDir, First: opts.PIDs}}, s.apply)
	defer func() {
		if err != nil {
			s.Close()
		}
		if recordings == nil {
			return
		}
		if err != nil {
			_ = recordings.Remove(filepath.Base(opts.Recording)) // nothing was recorded
		}
		recordings.Close()
	}()
	if err := s.check(); err != nil {
		return nil, err
	}
	s.trace.Physical = s.watchesKernel()
	if opts.Recording != "" {
		dir, err := atomicfile.OpenDir(filepath.Dir(opts.Recording))
		if err != nil {
			return nil, fmt.Errorf("record to %s: %w", opts.Recording, err)
		}
		file, err := dir.Create(filepath.Base(opts.Recording), opts.ForceRecording)
		if err != nil {
			dir.Close()
			return nil, fmt.Errorf("record to %s: %w", opts.Recording, err)
		}
		recordings = dir // which has the file from here on
		opts.RecordingOptions.Keyframe = s.state.Keyframe
		if s.writer, err = record.Create(file, opts.RecordingOptions); err != nil {
			return nil, errors.Join(err, file.Close())
		}
	}
	gpus := s.openGPUs()
	defer func() {
		if err != nil && s.gpus == nil {
			go gpus.abandon()
		}
	}()
	if s.tracer, err = probes.Open(probes.Options{
		API: opts.API, All: opts.All, Follow: opts.Follow, Kernel: s.trace.Physical,
		Tensors: opts.Tensors, TensorOptions: opts.TensorOptions, FreeStacks: opts.FreeStacks,
		Warn: s.warn, Stacks: s.frames, Meter: meter,
	}); err != nil {
		return nil, err
	}
	s.frames.Resend(s.tracer.ForgetStacks)
	mode, warning := s.frames.How()
	if warning != "" {
		s.warn(warning)
	}
	prepared, err := s.tracer.Prepare()
	if err != nil {
		return nil, err
	}
	s.trace.StackMode = mode
	s.readGPUs(gpus)
	s.trace.Start = time.Now().Round(0) // without the clock that a recording does not have
	if opts.All {
		s.trace.Target = "every process"
	}
	s.retell()
	if opts.Tensors && opts.Partial() {
		s.apply(&record.Tensors{Sample: opts.TensorSample, Min: opts.TensorMin})
	}
	s.expect(opts.PIDs)
	s.run.Go(func() {
		h := &handler{Session: s}
		if err := s.tracer.Run(h, h.idle); err != nil {
			s.failed <- err
		}
	})
	s.run.Go(func() { s.keep(s.ending) })
	if err := s.addTargets(prepared); err != nil {
		return nil, err
	}
	s.ask()
	go s.mend() // not waited for: it reads what targets' file systems give
	return s, nil
}

// check finds what is in the way before anything is loaded.
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

// watchesKernel tells whether the calls of NVIDIA's kernel driver are to be watched.
// Where no version can be read, what is seen of them is compared with NVML's figure
// all the same.
func (s *Session) watchesKernel() bool {
	switch {
	case s.opts.API == probes.APIRuntime:
		return false
	case s.trace.Driver != "" && !probes.DriverKnown(s.trace.Driver):
		s.warn("what the kernel driver takes for itself cannot be split: the calls of version " + s.trace.Driver + " are not known; " + probes.DriverFix)
		return false
	}
	return true
}

// An opening is NVML on its way, which takes tens of milliseconds or more.
type opening struct {
	done    chan struct{} // closed when the rest is there
	reader  *gpu.Reader
	version string
	err     error
}

// openGPUs begins to open NVML.
func (s *Session) openGPUs() *opening {
	o := &opening{done: make(chan struct{})}
	go func() {
		defer close(o.done)
		o.reader, o.version, o.err = gpu.OpenReader(s.subjects, func(r *record.Reading) { s.apply(r) }, monotonic)
	}()
	return o
}

// readGPUs begins to read the driver's figures. Without NVML everything but the
// driver's view works; the user is told why it is missing.
func (s *Session) readGPUs(o *opening) {
	if <-o.done; o.err != nil {
		s.warn("the driver's own totals are not known: " + o.err.Error())
		return
	}
	s.gpus, s.trace.NVML = o.reader, true
	if o.version != "" {
		s.trace.Driver = o.version
	}
	o.reader.Memory = s.opts.GPUMemory
	go o.reader.Run()
}

// abandon closes NVML once it is open. Nobody has read it.
func (o *opening) abandon() {
	if <-o.done; o.err == nil {
		go o.reader.Run()
		_ = o.reader.Close()
	}
}

// apply takes a record into the state, and into the recording. It is the one
// way into both.
func (s *Session) apply(r record.Record) {
	if e, ok := r.(*event.Event); ok && e.Op == event.OpObjectShare {
		s.checkShare(e)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.applyLocked(r)
}

func (s *Session) applyLocked(r record.Record) {
	if s.writer != nil {
		s.writer.Append(r) // first: a keyframe is of the state before r
	}
	s.state.Apply(r)
	if w := s.state.Wants(); w != nil {
		s.fetch(w)
	}
	if s.state.Over() && !s.over {
		s.over = true
		close(s.done)
	}
}

// fetch asks the sources for what the state wants. It waits for nothing.
func (s *Session) fetch(w *state.Wants) {
	if w.Reading && s.gpus != nil {
		s.gpus.Soon(w.Memory)
	}
	for _, id := range w.Identities {
		s.frames.Identify(id)
	}
}

// retell tells the trace again: something about it changed.
func (s *Session) retell() {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.trace
	s.applyLocked(&t)
}

func (s *Session) subjects() []record.Subject {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Subjects()
}

func (s *Session) warn(text string) {
	s.apply(&record.Note{Text: text})
	if s.opts.Warn != nil {
		s.opts.Warn(text)
	}
}

// Done is closed when every target, and every child of theirs that is traced,
// has ended. With All it never is.
func (s *Session) Done() <-chan struct{} { return s.done }

// Failed delivers an error after which nothing more is collected.
func (s *Session) Failed() <-chan error { return s.failed }

// Target says what is traced, such as "pid 4711 (python3)".
func (s *Session) Target() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trace.Target
}

// Stop takes the probes off and waits until what they saw is counted. The
// session can still be asked for snapshots.
func (s *Session) Stop() error {
	s.mu.Lock()
	again := s.stopped
	s.stopped = true
	s.mu.Unlock()
	if s.tracer == nil || again {
		return nil
	}
	at := monotonic()
	err := s.tracer.Stop()
	close(s.ending)
	s.run.Wait()
	s.ask()
	s.allocated(at, nil)
	if s.opts.Tensors && !s.sawTensors() {
		s.warn("no tensors were seen: no traced process had PyTorch's own allocator hand out memory on a GPU (with backend:cudaMallocAsync, and with an allocator that is plugged in, each tensor is an allocation of CUDA's)")
	}
	s.apply(moment(at, true))
	if s.recorder() != nil || s.opts.OutOfMemory != nil { // nobody need look any more
		s.tell()
		s.report(true)
	}
	return err
}

func (s *Session) sawTensors() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.SawTensors()
}

// Close stops and releases everything, once. What is in use by something that
// does not answer is left to the end of this process.
func (s *Session) Close() error {
	s.closing.Do(func() { s.closed = s.close() })
	return s.closed
}

func (s *Session) close() error {
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
	return err
}

// A handler takes what the tracer tells, from its one goroutine.
type handler struct {
	*Session
	quiet bool // no event came since the last moment
}

func (h *handler) Event(e *event.Event) {
	h.quiet = false
	h.ended(e)
	h.apply(e)
}

func (h *handler) Stack(st *probes.Stack) { h.frames.Stack(st) }

// quietInterval is how often it is told what time it is while nothing happens.
const quietInterval = uint64(500 * time.Millisecond)

// idle is what the reader of events does between batches. Events were seen up to the
// time until; while more is waiting, which 0 says, up to the last. No moment goes back
// behind one that somebody has looked at: it would have what came after.
func (h *handler) idle(until time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at, drained := uint64(until), until != 0
	if !drained {
		at = h.state.Seen()
	}
	now := h.state.Now()
	awaited := h.state.Waits() || h.awaited > h.state.Seen()
	if at < now || h.quiet && at < now+quietInterval && !awaited {
		return
	}
	h.quiet = drained
	h.applyLocked(moment(at, drained))
}
