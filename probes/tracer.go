// Package probes goes from CUDA's API to events: the table of functions, the
// libraries that export them, the probes on those, and the decoding of what
// the kernel side sends.
package probes

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"

	"github.com/gpumemtrace/gpumemtrace/bpf"
	"github.com/gpumemtrace/gpumemtrace/internal/event"
	"github.com/gpumemtrace/gpumemtrace/internal/proc"
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
	// Warn receives sentences that the user should read, at most once each.
	// It may be called from any goroutine. nil drops them.
	Warn func(string)
	// Mapped, if set, hears of each new executable mapping of a traced
	// process, from a goroutine of its own: caches of its mappings are stale.
	Mapped func(pid int)
	// Exit, if set, loads the return program that takes the place of this
	// package's own, which follows frame pointers. It is given the kernel
	// side's maps and constants by name, and how the program is attached. A
	// nil program keeps the own one.
	Exit func(maps map[string]*ebpf.Map, constants map[string]any, attach ebpf.AttachType) (*ebpf.Program, error)

	ringBytes uint32 // of the ring buffer; 0 for the kernel side's own choice
}

// A Tracer has the kernel side loaded and its probes on.
type Tracer struct {
	opts   Options
	coll   *ebpf.Collection
	progs  programs
	life   []link.Link
	reader *ringbuf.Reader
	side   *sideband
	sideWG sync.WaitGroup

	mu          sync.Mutex
	attachments map[attachKey]*attachment
	refused     map[attachKey]bool
	warned      map[string]bool
	glimpses    []*attachment // until their time is over
	texts       map[event.Process]text

	decodeErrors, mapsLost, attachFull atomic.Uint64
}

// attachKey is a library, and a process when only that one is probed.
type attachKey struct {
	id  proc.FileID
	pid int
}

// maxAttachments bounds the libraries probed at one time.
const maxAttachments = 256

// Open loads the kernel side. Nothing is probed yet.
func Open(opts Options) (_ *Tracer, err error) {
	if err := checkPrivilege(); err != nil {
		return nil, err
	}
	t := &Tracer{
		opts:        opts,
		attachments: map[attachKey]*attachment{},
		refused:     map[attachKey]bool{},
		warned:      map[string]bool{},
		texts:       map[event.Process]text{},
	}
	defer func() {
		if err != nil {
			err = explain(err)
			t.Close()
		}
	}()
	spec, err := bpf.LoadGpumemtrace()
	if err != nil {
		return nil, fmt.Errorf("read the kernel side: %w", err)
	}
	constants, err := t.constants()
	if err != nil {
		return nil, err
	}
	for name, v := range constants {
		if err := spec.Variables[name].Set(v); err != nil {
			return nil, fmt.Errorf("configure the kernel side: %w", err)
		}
	}
	if opts.ringBytes != 0 {
		spec.Maps["events"].MaxEntries = opts.ringBytes
	}
	attach := ebpf.AttachNone
	if haveMulti() {
		attach = ebpf.AttachTraceUprobeMulti
	}
	spec.Programs[enterProgram].AttachType = attach
	spec.Programs[exitProgram].AttachType = attach
	if t.coll, err = ebpf.NewCollection(spec); err != nil {
		return nil, fmt.Errorf("load the kernel side: %w", err)
	}
	t.progs = programs{t.coll.Programs[enterProgram], t.coll.Programs[exitProgram], attach != ebpf.AttachNone}
	if opts.Exit != nil {
		exit, err := opts.Exit(t.coll.Maps, constants, attach)
		if err != nil {
			return nil, err
		}
		if exit != nil {
			t.progs.exit = exit
		}
	}
	if err := t.fillRows(); err != nil {
		return nil, err
	}
	for name, program := range map[string]string{
		"sched_process_fork": "gm_fork", "sched_process_exec": "gm_exec", "sched_process_exit": "gm_exit",
	} {
		l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: name, Program: t.coll.Programs[program]})
		if err != nil {
			return nil, fmt.Errorf("watch %s: %w", name, err)
		}
		t.life = append(t.life, l)
	}
	if t.reader, err = ringbuf.NewReader(t.coll.Maps["events"]); err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	if t.side, err = openSideband(); err != nil {
		return nil, err
	}
	t.sideWG.Go(func() {
		t.side.run(t.onMapping, func(n uint64) { t.mapsLost.Add(n) })
	})
	return t, nil
}

const (
	enterProgram = "gm_call_enter"
	exitProgram  = "gm_call_exit"
)

// constants are what the programs read as constants, by name.
func (t *Tracer) constants() (map[string]any, error) {
	ns, err := pidNamespace()
	if err != nil {
		return nil, err
	}
	b := func(v bool) uint32 {
		if v {
			return 1
		}
		return 0
	}
	return map[string]any{
		"cfg_pidns_inum": ns, "cfg_all": b(t.opts.All), "cfg_follow": b(t.opts.Follow),
	}, nil
}

// pidNamespace returns the inode of this process's PID namespace, 0 for the
// initial one (PROC_PID_INIT_INO in include/linux/proc_ns.h).
func pidNamespace() (uint32, error) {
	const initial = 0xEFFFFFFC
	name, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return 0, fmt.Errorf("find the PID namespace: %w", err)
	}
	var inum uint32
	if _, err := fmt.Sscanf(name, "pid:[%d]", &inum); err != nil {
		return 0, fmt.Errorf("find the PID namespace in %q: %w", name, err)
	}
	if inum == initial {
		return 0, nil
	}
	return inum, nil
}

// InitialPIDNamespace tells whether this process is in the initial PID
// namespace, where pids are those that drivers know.
func InitialPIDNamespace() bool {
	inum, err := pidNamespace()
	return err == nil && inum == 0
}

// levels returns the levels to probe.
func (t *Tracer) levels() []Level {
	switch t.opts.API {
	case APIRuntime:
		return []Level{Runtime, Torch}
	case APIBoth:
		return []Level{Driver, Runtime, Torch}
	}
	return []Level{Driver, Torch}
}

// fillRows tells the kernel side the table, as the API level wants it.
func (t *Tracer) fillRows() error {
	rows := t.coll.Maps["rows"]
	for i := range Entries {
		c := Entries[i].class
		if Entries[i].Level == Runtime && t.opts.API == APIBoth {
			c = classAround
		}
		if err := rows.Put(uint32(i), Entries[i].plan.kernelRow(c)); err != nil {
			return fmt.Errorf("fill the table of functions: %w", err)
		}
	}
	return nil
}

// Prepare probes the CUDA libraries that a program started now would load, so
// that its first call is seen. It returns how many there are.
func (t *Tracer) Prepare() (int, error) {
	n := 0
	libs := systemLibraries(t.levels())
	for i, lib := range libs {
		err := t.attach(lib, 0)
		if err == nil {
			n++
		} else if !errors.Is(err, ErrNoSymbols) {
			closeAll(libs[i+1:])
			return n, err
		}
	}
	return n, nil
}

// Target traces pid and probes the CUDA libraries that it maps now; later ones
// follow when it maps them. It returns those that it maps, PyTorch's excepted. The error
// is os.ErrNotExist for a process that is not there.
func (t *Tracer) Target(pid int) ([]Library, error) {
	if err := t.coll.Maps["targets"].Put(uint32(pid), uint32(1)); err != nil {
		return nil, fmt.Errorf("trace process %d: %w", pid, err)
	}
	libs, err := t.probe(pid)
	for _, lib := range libs {
		if lib.Level == Driver {
			err = errors.Join(err, t.glimpse(lib, pid))
		}
	}
	return libs, err
}

// TargetAll probes the CUDA libraries that any process maps now, and returns
// the processes that map one.
func (t *Tracer) TargetAll() ([]int, error) {
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, d := range dirs {
		var pid int
		if _, err := fmt.Sscanf(d.Name(), "%d", &pid); err != nil || pid == os.Getpid() {
			continue
		}
		libs, err := t.probe(pid)
		if len(libs) > 0 {
			pids = append(pids, pid)
		}
		// One process's odd library must not keep the others from being traced.
		if err != nil && len(libs) > 0 {
			t.warn(fmt.Sprintf("process %d is not traced: %v", pid, err))
		}
	}
	return pids, nil
}

func (t *Tracer) probe(pid int) ([]Library, error) {
	libs, err := findLibraries(pid, t.levels())
	if err != nil {
		return nil, err
	}
	only := 0
	if !t.opts.Follow && !t.opts.All && pidFilterWorks() {
		only = pid
	}
	var useless error
	probed := 0
	for i, lib := range libs {
		switch err := t.attach(lib, only); {
		case errors.Is(err, ErrNoSymbols) && lib.Level == Torch: // an older PyTorch
		case errors.Is(err, ErrNoSymbols):
			useless = err
		case err != nil:
			closeAll(libs[i+1:])
			return libs, err
		default:
			probed++
		}
	}
	if useless != nil && probed > 0 {
		t.warn(useless.Error())
		useless = nil
	}
	return slices.DeleteFunc(libs, func(l Library) bool { return l.Level == Torch }), useless
}

// attach probes a library once. It owns the library from then on.
func (t *Tracer) attach(lib Library, pid int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	held := false
	defer func() {
		if !held {
			lib.Close()
		}
	}()
	key := attachKey{lib.id, pid}
	if t.attachments[key] != nil || t.refused[key] || t.attachments[attachKey{lib.id, 0}] != nil {
		return nil
	}
	if len(t.attachments) >= maxAttachments {
		t.attachFull.Add(1)
		return nil
	}
	a, err := attach(lib, t.progs, pid, lasting)
	if err != nil {
		if errors.Is(err, ErrNoSymbols) {
			t.refused[key] = true
		}
		return err
	}
	t.attachments[key], held = a, true
	return nil
}

// onMapping looks at one new mapping of any process.
func (t *Tracer) onMapping(m mapping) {
	if !t.Traced(m.pid) {
		return
	}
	if t.opts.Mapped != nil {
		t.opts.Mapped(m.pid)
	}
	if level, ok := libraryLevel(m.path); ok && slices.Contains(t.levels(), level) {
		if _, err := t.probe(m.pid); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.warn(fmt.Sprintf("%s, which process %d loaded, is not traced: %v", m.path, m.pid, err))
		}
	}
}

// Traced tells whether pid is a target now.
func (t *Tracer) Traced(pid int) bool {
	if t.opts.All {
		return true
	}
	var one uint32
	return t.coll.Maps["targets"].Lookup(uint32(pid), &one) == nil
}

func (t *Tracer) warn(text string) {
	t.mu.Lock()
	again := t.warned[text] || len(t.warned) > 1000
	t.warned[text] = true
	t.mu.Unlock()
	if !again && t.opts.Warn != nil {
		t.opts.Warn(text)
	}
}

// pollInterval bounds how long an event waits for the reader: the kernel side
// wakes it only when much is waiting.
const pollInterval = 50 * time.Millisecond

// Run hands everything traced to h until Stop, and then what was still in the
// ring buffer. idle, if not nil, is called whenever the ring buffer is empty.
func (t *Tracer) Run(h Handler, idle func()) error {
	d := &decoder{onProcAddress: t.guard}
	var rec ringbuf.Record
	for {
		t.reader.SetDeadline(time.Now().Add(pollInterval))
		for {
			err := t.reader.ReadInto(&rec)
			switch {
			case err == nil:
				if d.decode(rec.RawSample, h) != nil {
					t.decodeErrors.Add(1)
				}
				continue
			case errors.Is(err, ringbuf.ErrFlushed):
				return nil
			case !errors.Is(err, os.ErrDeadlineExceeded):
				return fmt.Errorf("read events: %w", err)
			}
			break
		}
		if idle != nil {
			idle()
		}
	}
}

// Stop takes the probes off and lets Run drain and return.
func (t *Tracer) Stop() error {
	err := t.detach()
	if t.reader != nil {
		err = errors.Join(err, t.reader.Flush())
	}
	return err
}

func (t *Tracer) detach() error {
	if t.side != nil {
		t.side.halt()
		t.sideWG.Wait()
		t.side.close()
		t.side = nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for key, a := range t.attachments {
		errs = append(errs, a.close())
		delete(t.attachments, key)
	}
	for _, l := range t.life {
		errs = append(errs, l.Close())
	}
	t.life = nil
	for _, a := range t.glimpses {
		errs = append(errs, a.detach())
	}
	t.glimpses = nil
	return errors.Join(errs...)
}

// Close releases the kernel side. Run must have returned.
func (t *Tracer) Close() error {
	err := t.detach()
	if t.reader != nil {
		err = errors.Join(err, t.reader.Close())
	}
	if t.coll != nil {
		t.coll.Close()
	}
	return err
}

// Counters returns every cause of loss.
func (t *Tracer) Counters() []Counter {
	out := slices.Clone(kernelCounters)
	for i := range out {
		// An unreadable counter stays 0; the map cannot vanish while it is open.
		_ = t.coll.Maps["loss"].Lookup(uint32(i), &out[i].Value)
	}
	out = slices.DeleteFunc(out, func(c Counter) bool { return c.Help == "" })
	return append(out,
		Counter{"records_malformed", "records that could not be decoded", t.decodeErrors.Load()},
		Counter{"mappings_lost", "new mappings that the kernel could not report: a library loaded then may be untraced", t.mapsLost.Load()},
		Counter{"libraries_not_probed", "libraries left unprobed because too many were probed already", t.attachFull.Load()},
		Counter{"runs_missed", "program runs that the kernel skipped", t.missed()})
}

// missed is how often the kernel skipped a program (recursion on one CPU).
func (t *Tracer) missed() (n uint64) {
	for _, p := range t.coll.Programs {
		if s, err := p.Stats(); err == nil {
			n += s.RecursionMisses
		}
	}
	return n
}

// Missing returns, by library path, the symbols of the table that a probed
// library does not export.
func (t *Tracer) Missing() map[string][]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := map[string][]string{}
	for _, a := range t.attachments {
		if len(a.missing) > 0 {
			out[a.library.Path] = a.missing
		}
	}
	return out
}
