// Package probes goes from CUDA's API to events: the table of functions, the
// libraries that export them, the probes on those, and the decoding of what
// the kernel side sends.
package probes

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"

	"github.com/gpumemtrace/gpumemtrace/bpf"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/source/clock"
	"github.com/gpumemtrace/gpumemtrace/internal/source/fair"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
	"github.com/gpumemtrace/gpumemtrace/internal/source/work"
)

// API says which level of CUDA's API is counted.
type API string

const (
	APIDriver  API = "driver"  // libcuda: every byte, whatever runtime asked for it
	APIRuntime API = "runtime" // libcudart alone
	APIBoth    API = "both"    // libcuda counts, and events name the runtime call around
)

// Options configure a Tracer.
type Options struct {
	API    API
	All    bool // every process, now and later
	Follow bool // the children of targets too
	// Kernel: what libcuda asks of the kernel driver, too. Only with APIDriver
	// and APIBoth: the runtime's functions do not tell what it is for.
	Kernel bool
	// Tensors: what PyTorch's caching allocator hands out, too.
	Tensors bool
	// FreeStacks: where a tensor is freed, a stack is taken too.
	FreeStacks bool
	TensorOptions
	// Warn receives sentences that the user should read, at most once each.
	// It may be called from any goroutine. nil drops them.
	Warn func(string)
	// Stacks, if set, takes the stacks of calls, in place of this package's own
	// return program, which follows frame pointers.
	Stacks StackTaker
	// Meter, if set, measures the reading of what was traced, as work for nobody, and has
	// what else is done for users, by their places (Tracer.UserOf).
	Meter *work.Meter

	ringBytes           uint32                 // of the ring buffer; 0 for the kernel side's own choice
	samples, allocators uint32                 // places in the kernel side's tables; 0 for its own choice
	attachments         int                    // libraries probed at one time; 0 for maxAttachments
	attach              func() ebpf.AttachType // how probes go on; nil for attachType
}

// A StackTaker takes call stacks in the kernel. Its methods but Load are called
// by the goroutines that read what was traced: they wait for nothing.
type StackTaker interface {
	// Load returns the program to run where a function returns, nil to follow
	// frame pointers. It is given the kernel side's maps and constants by name,
	// how the program is attached, and the kernel's types. Other programs are
	// loaded meanwhile.
	Load(maps map[string]*ebpf.Map, constants map[string]any, attach ebpf.AttachType, types *btf.Cache) (*ebpf.Program, error)
	// Mapped hears of each new executable mapping of a traced process: what is
	// known of its mappings is stale. cuda says that it is a library of CUDA's
	// or of PyTorch's.
	Mapped(pid int, m proc.Mapping, cuda bool)
	// Forked says that child is traced and began with the mappings of parent.
	Forked(parent, child int)
	// Replaced says that pid replaced its image.
	Replaced(pid int)
	// Ended says that pid has ended.
	Ended(pid int)
	// Drain waits until the stacks of all events so far have been sent, or for as
	// long as is bearable.
	Drain()
}

// A Tracer has the kernel side loaded and its probes on.
type Tracer struct {
	opts    Options
	coll    *ebpf.Collection
	progs   programs
	life    []link.Link
	reader  *ringbuf.Reader
	waiter  *waiter // for what reader reads
	side    *sideband
	workers sync.WaitGroup // the sideband and tidy
	stop    chan struct{}  // closed to end them and the guard

	work     *fair.Queue   // what looks at processes and probes their libraries
	lost     chan struct{} // mappings were
	guarding chan procAddress
	system   chan []Library         // those that a program started now would load, once
	texts    map[event.Process]text // of the guard's goroutine

	gates    gates
	users    users
	takenOff func() error // takes every probe off, once, and returns when that is done

	mu       sync.Mutex // never held while anything is waited for
	libs     attachments
	glimpses []*attachment // until their time is over
	warned   map[string]bool
	longest  time.Duration // between a library's mapping and its probes

	measured measured

	loss *loss.Set
}

// Open loads the kernel side. Nothing is probed yet.
func Open(opts Options) (_ *Tracer, err error) {
	if err := checkPrivilege(); err != nil {
		return nil, err
	}
	t := &Tracer{
		opts:     opts,
		loss:     loss.New(causes),
		libs:     newAttachments(cmp.Or(opts.attachments, maxAttachments)),
		warned:   map[string]bool{},
		texts:    map[event.Process]text{},
		stop:     make(chan struct{}),
		work:     newWork(),
		lost:     make(chan struct{}, 1),
		guarding: make(chan procAddress, maxGuarding),
		system:   make(chan []Library, 1),
	}
	go t.look()
	t.takenOff = sync.OnceValue(t.closeAll)
	defer func() {
		if err != nil {
			err = explain(err)
			t.Close()
		}
	}()
	if err := t.load(); err != nil {
		return nil, err
	}
	if err := t.fillRows(); err != nil {
		return nil, err
	}
	t.users.owners = t.coll.Maps["owners"]
	if t.users.Users, err = bpf.MapUsers(t.coll.Maps["users"]); err != nil {
		return nil, err
	}
	for name, program := range lifePrograms {
		l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: name, Program: t.coll.Programs[program]})
		if err != nil {
			return nil, fmt.Errorf("watch %s: %w", name, err)
		}
		t.life = append(t.life, l)
	}
	if t.reader, err = ringbuf.NewReader(t.coll.Maps["events"]); err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	if t.waiter, err = newWaiter(t.coll.Maps["events"].FD()); err != nil {
		return nil, err
	}
	if t.side, err = openSideband(); err != nil {
		return nil, err
	}
	t.workers.Go(func() { t.side.run(t.onMapping, t.lostMappings) })
	t.workers.Go(func() { t.tidy(t.stop) })
	t.workers.Go(func() { t.rescan(t.stop) })
	go t.guard(t.stop) // not waited for: it reads what a target's file system gives
	return t, nil
}

// constants are what the programs read as constants, by name.
func (t *Tracer) constants(attach ebpf.AttachType) (map[string]any, error) {
	ns, err := proc.Namespace("pid")
	if err != nil {
		return nil, err
	}
	if ns == proc.InitialPID {
		ns = 0 // the kernel side then translates no pids
	}
	b := func(v bool) uint32 {
		if v {
			return 1
		}
		return 0
	}
	return map[string]any{
		"cfg_pidns_inum": ns, "cfg_all": b(t.opts.All), "cfg_follow": b(t.opts.Follow),
		"cfg_session":       b(attach == attachSession),
		"cfg_free_stacks":   b(t.opts.FreeStacks),
		"cfg_tensor_sample": t.opts.TensorSample, "cfg_tensor_min": t.opts.TensorMin,
	}, nil
}

func (t *Tracer) levels() []Level {
	var out []Level
	if t.opts.API != APIRuntime {
		out = append(out, Driver)
	}
	if t.opts.API == APIRuntime || t.opts.API == APIBoth {
		out = append(out, Runtime)
	}
	out = append(out, Torch)
	if t.opts.Tensors {
		out = append(out, TorchCUDA)
	}
	if t.watchesKernel() {
		out = append(out, Vendor)
	}
	return out
}

func (t *Tracer) watchesKernel() bool { return t.opts.Kernel && t.opts.API != APIRuntime }

// fillRows tells the kernel side the table, as the API level wants it.
func (t *Tracer) fillRows() error {
	rows := t.coll.Maps["rows"]
	for i := range Entries {
		if err := rows.Put(uint32(i), Entries[i].plan.kernelRow(t.class(i), runtime.GOARCH)); err != nil {
			return fmt.Errorf("fill the table of functions: %w", err)
		}
	}
	for number, e := range kernelEscapes() {
		if err := t.coll.Maps["escapes"].Put(uint32(number), e); err != nil {
			return fmt.Errorf("fill the table of the kernel driver's calls: %w", err)
		}
	}
	return nil
}

// class is what the i-th of Entries is to the kernel side.
func (t *Tracer) class(i int) class {
	if Entries[i].Level == Runtime && t.opts.API == APIBoth {
		return classAround
	}
	return Entries[i].class
}

// wants tells whether a row is to be probed for the whole trace.
func (t *Tracer) wants(r *Row) bool {
	return lasting(r) && (t.watchesKernel() || !r.imported()) && (t.opts.Tensors || r.class != classTensor)
}

// confined tells whether a probe is for one process alone.
func (t *Tracer) confined() bool { return !t.opts.Follow && !t.opts.All && pidFilterWorks() }

// Prepare probes the CUDA libraries that a program started now would load, so that
// its first call is seen, and returns how many there are. Where probes are confined
// to a target it does nothing: Target probes those, too.
func (t *Tracer) Prepare() (int, error) {
	if t.confined() {
		return 0, nil
	}
	return t.prepare(0)
}

// prepare does so for one process, or for all with 0. As the process may replace its
// image before it loads them, they stay probed for good.
func (t *Tracer) prepare(pid int) (int, error) {
	libs, first := <-t.system
	if !first {
		libs = systemLibraries(t.levels())
	}
	n := 0
	var failed error
	errs, ok := inTurn(t, 0, func() []error { return t.attachAll(libs, claim{only: pid}) })
	if !ok {
		return 0, errNotProbed
	}
	for _, err := range errs {
		if err == nil {
			n++
		} else if !errors.Is(err, ErrNoSymbols) {
			failed = errors.Join(failed, err)
		}
	}
	return n, failed
}

// look opens the libraries that prepare probes, and finds the places of their probes:
// while the kernel side loads there is time for it.
func (t *Tracer) look() {
	libs := systemLibraries(t.levels())
	for i := range libs {
		lib := libs[i]
		libs[i].ahead = sync.OnceValues(func() (sites, error) { return lib.sites(t.wants) })
		go func() { _, _ = libs[i].ahead() }() // attach has its error
	}
	t.system <- libs
	close(t.system)
}

// Target traces pid and probes the CUDA libraries that it maps now, and others when
// it maps them. Where probes are confined to pid, it probes those that pid would
// load beforehand. It returns the libraries that pid maps, except PyTorch's.
// The error is os.ErrNotExist for a process that is not there.
func (t *Tracer) Target(pid int) ([]Library, error) {
	if err := t.target(pid); err != nil {
		return nil, fmt.Errorf("trace process %d: %w", pid, err)
	}
	user, err := userOf(pid)
	if err != nil {
		return nil, fmt.Errorf("trace process %d: %w", pid, err)
	}
	c := claim{pid: pid, user: user, at: clock.Monotonic(), only: t.confinedTo(pid)}
	found, ok := inTurn(t, user, func() (f found) {
		f.libs, f.err = t.probe(c)
		return f
	})
	switch {
	case !ok:
		t.missed(c, noAnswer)
		return nil, fmt.Errorf("trace process %d: %w", pid, errNotProbed)
	case errors.Is(found.err, errNotProbed):
		t.missed(c, noSlot)
	}
	libs, err := found.libs, found.err
	if err == nil && t.confined() {
		_, err = t.prepare(pid)
	}
	for _, lib := range libs {
		if lib.Level == Driver {
			err = errors.Join(err, t.glimpse(lib, pid))
		}
	}
	return libs, err
}

// found is what probe returns.
type found struct {
	libs []Library
	err  error
}

// target has the kernel side trace pid. The error is os.ErrNotExist if it has ended: the
// kernel side takes a target back when it exits, and would leave one that was gone by
// then to whoever has its PID next.
func (t *Tracer) target(pid int) error {
	err := t.newTarget(pid)
	if proc.Ended(pid) {
		_ = t.coll.Maps["targets"].Delete(uint32(pid)) // its exit may have
		return os.ErrNotExist
	}
	return err
}

// probe probes the libraries that a process maps, each because of the claim. What it
// finds was mapped by now, or since.
func (t *Tracer) probe(c claim) ([]Library, error) {
	c.at = clock.Monotonic()
	libs, err := findLibraries(c.pid, t.levels())
	if err != nil {
		return nil, err
	}
	var useless, failed error
	probed := 0
	for i, err := range t.attachAll(libs, c) {
		switch {
		case errors.Is(err, ErrNoSymbols) && optional(libs[i].Level): // an older PyTorch
		case errors.Is(err, ErrNoSymbols):
			useless = err
		case err != nil:
			failed = errors.Join(failed, err)
		default:
			probed++
		}
	}
	if failed != nil {
		return libs, failed
	}
	if useless != nil && probed > 0 {
		t.warnOf(c.user, useless.Error())
		useless = nil
	}
	return slices.DeleteFunc(libs, func(l Library) bool { return l.Level.pyTorch() }), useless
}

// traced tells whether pid is a target now: with Options.All, a process that was
// seen to use CUDA.
func (t *Tracer) traced(pid int) bool {
	var x bpf.Target
	return t.coll.Maps["targets"].Lookup(uint32(pid), &x) == nil
}

func (t *Tracer) warn(text string) {
	t.mu.Lock()
	again := t.warned[text]
	if len(t.warned) >= maxWarned {
		clear(t.warned)
	}
	t.warned[text] = true
	t.mu.Unlock()
	if !again && t.opts.Warn != nil {
		t.opts.Warn(text)
	}
}

// maxWarned bounds the warnings that are not given again.
const maxWarned = 1000

const (
	// pollInterval bounds how long an event waits for the reader: the kernel side
	// wakes it only when much is waiting.
	pollInterval = 50 * time.Millisecond
	// idleInterval does so when none came for idleAfter.
	idleInterval = 100 * time.Millisecond
	idleAfter    = time.Second
)

// maxBatch bounds the records handled between two calls of Run's idle: without
// it, whoever allocates without a pause would keep them from coming.
const maxBatch = 4096

// Run hands everything traced to h until Stop, and then what was still in the
// ring buffer. idle, if not nil, is called between batches: what was sent before the
// time until, of CLOCK_MONOTONIC, has been handed on, or with 0 more is waiting.
func (t *Tracer) Run(h Handler, idle func(until time.Duration)) error {
	d := &decoder{onProcAddress: t.toGuard}
	follower := follower{h, t, d}
	var rec ringbuf.Record
	t.reader.SetDeadline(time.Now()) // what is there
	last := time.Now()               // when an event came
	for {
		var until time.Duration
		var n int
		var err error
		t.opts.Meter.Do(noPlace, func() {
			n, until, err = t.batch(d, &rec, follower)
			if err == nil && idle != nil {
				idle(until)
			}
		})
		switch {
		case errors.Is(err, ringbuf.ErrFlushed):
			return nil
		case err != nil:
			return fmt.Errorf("read events: %w", err)
		}
		if until == 0 {
			continue
		}
		now, interval := time.Now(), pollInterval
		if n > 0 {
			last = now
		}
		if now.Sub(last) >= idleAfter {
			interval = clock.Until(idleInterval)
		}
		if err := t.waiter.wait(interval); err != nil {
			return err
		}
	}
}

// batch hands n records on, until there are no more from before the time until, or with
// 0 more is waiting.
func (t *Tracer) batch(d *decoder, rec *ringbuf.Record, h Handler) (n int, until time.Duration, err error) {
	looked, came := clock.Monotonic(), false // since then
	for n < maxBatch {
		err := t.reader.ReadInto(rec)
		switch {
		case err == nil:
			n, came = n+1, true
			if d.decode(rec.RawSample, h) != nil {
				t.loss.Add(lossMalformed, 1)
			}
			t.users.Took(d.user, rec.RawSample)
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return n, 0, err
		case came: // and more may have, since the ring buffer was found empty
			looked, came = clock.Monotonic(), false
		default:
			return n, looked, nil
		}
	}
	return n, 0, nil
}

// A follower tells the tracer of each process's life before its handler, and the
// taker of stacks after it.
type follower struct {
	Handler
	tracer  *Tracer
	decoder *decoder
}

func (f follower) Event(e *event.Event) {
	f.tracer.lived(e)
	if f.decoder.shed {
		f.tracer.countShed(e)
	}
	f.Handler.Event(e)
	if taker := f.tracer.opts.Stacks; taker != nil {
		switch e.Op {
		case event.OpFork:
			taker.Forked(int(e.Proc.PID), int(e.Child.PID))
		case event.OpExec:
			taker.Replaced(int(e.Proc.PID))
		case event.OpExit:
			taker.Ended(int(e.Proc.PID))
		}
	}
}

// ForgetStacks makes the kernel side send stacks again when they come up again.
// An event that it sent before may still name one without sending it.
func (t *Tracer) ForgetStacks(ids []uint64) {
	for _, id := range ids {
		_ = t.coll.Maps["stacks_seen"].Delete(id) // evicted already
	}
}

// Stop ends what is told at once, and lets Run drain and return. Probes come off
// meanwhile: where each has a link of its own that takes the kernel 20 s, and Close
// waits for it.
func (t *Tracer) Stop() error {
	err := t.halt()
	go func() { _ = t.takenOff() }() // Close has its error
	if t.opts.Stacks != nil {
		t.opts.Stacks.Drain() // into the ring buffer
	}
	if t.reader != nil {
		err = errors.Join(err, t.reader.Flush())
		t.waiter.wake()
	}
	return err
}

// Wake has Run read what there is now. A call that comes just before Run waits is
// missed.
func (t *Tracer) Wake() { t.waiter.wake() }

// halt ends what is told, and what puts more probes on.
func (t *Tracer) halt() error {
	err := t.shutGates()
	if t.side != nil {
		close(t.stop)
		t.work.Close()
		t.side.halt()
		t.workers.Wait()
		t.side.close()
		t.side = nil
	}
	for _, l := range t.life {
		err = errors.Join(err, l.Close())
	}
	t.life = nil
	return err
}

// Close releases the kernel side. Run must have returned.
func (t *Tracer) Close() error {
	err := errors.Join(t.halt(), t.takenOff())
	if t.reader != nil {
		err = errors.Join(err, t.reader.Close())
	}
	if t.waiter != nil {
		err = errors.Join(err, t.waiter.close())
	}
	go func() {
		for libs := range t.system {
			closeAll(libs)
		}
	}()
	if t.coll != nil {
		t.coll.Close()
	}
	return err
}
