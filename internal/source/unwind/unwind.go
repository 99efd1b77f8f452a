// Package unwind takes complete user stacks, native and Python, where a call
// returns. It is the only package that knows go.opentelemetry.io/ebpf-profiler,
// whose Go side analyses processes (.eh_frame, CPython's structures) into BPF
// maps. The unwinding itself, the memo in front of it, Python's names and the
// events are ours, over the same maps (bpf/unwind.bpf.c).
package unwind

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"go.opentelemetry.io/ebpf-profiler/interpreter/interpreterconfig"
	"go.opentelemetry.io/ebpf-profiler/interpreter/python"
	profilerlog "go.opentelemetry.io/ebpf-profiler/log"
	"go.opentelemetry.io/ebpf-profiler/processmanager"
	processmaps "go.opentelemetry.io/ebpf-profiler/processmanager/ebpf"

	"github.com/gpumemtrace/gpumemtrace/internal/source/filememo"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
	"github.com/gpumemtrace/gpumemtrace/internal/source/work"
)

// Options say how to capture. The zero value of each field but Maps will do.
type Options struct {
	// Maps are those of the caller's programs, by name: events, rows, loss,
	// threads, targets, users, stacks_seen.
	Maps  map[string]*ebpf.Map
	users *userTable // of Maps, made by Start if nil
	// Constants are the caller's cfg_ variables, by name.
	Constants map[string]any
	// Attach is how the exit program will be attached: ebpf.AttachNone for
	// perf-type uprobes, ebpf.AttachTraceUprobeMulti.
	Attach ebpf.AttachType
	// Types are the kernel's, which take 10 ms to read.
	Types *btf.Cache
	// First are processes whose analysis begins while programs are loaded.
	First []int
	// NoMemo unwinds every stack in full.
	NoMemo bool
	// VerifyStacks, when it is not 0, unwinds every so many memo hits in full
	// and compares.
	VerifyStacks uint32
	// CacheDir is where unwind tables are kept for later runs, "" for nowhere.
	CacheDir string
	// Meter, if set, measures the work for each user, by the place that the caller's
	// programs have for the user.
	Meter *work.Meter
}

// CacheDir is the usual one of Options.
const CacheDir = "/var/cache/gpumemtrace"

// The unwind tables of one PyTorch process take 10 to 30 MiB.
const (
	cacheLimit  = 256 << 20
	memoryLimit = 64 << 20
)

// openMemo returns where unwind tables are remembered, and why it is not in the
// directory that was wanted.
func (o *Options) openMemo() (*filememo.Memo, error) {
	if o.CacheDir == "" {
		return filememo.InMemory(tableKind, memoryLimit), nil
	}
	memo, err := filememo.Open(o.CacheDir, tableKind, cacheLimit)
	if err != nil {
		memo = filememo.InMemory(tableKind, memoryLimit)
	}
	return memo, err
}

// An Unwinder captures the stacks of analysed processes.
type Unwinder struct {
	kernel    *kernel
	tables    *tables
	processes *processmanager.ProcessManager
	cancel    context.CancelFunc
	ending    <-chan struct{} // closed by cancel
	worked    chan struct{}   // closed when the worker has ended
	opts      Options
	first     []int          // processes that the start waits for
	analyse   gate           // one at a time
	memo      *filememo.Memo // of unwind tables
	memoErr   error          // why it is not on disk although it was wanted
	ahead     *ahead
	aheadDone chan struct{}             // closed when nothing is analysed ahead any more
	mappings  map[uint32][]proc.Mapping // by process, as of its last analysis; under analyse
	settling  sync.WaitGroup            // analyses whose tables are on their way
	schedule  *schedule
	copies    copies
	known     *knownProcesses
	codes     *codeWatch

	unnamed atomic.Uint64 // Python frames
	pythons unknownPythons
}

// Start loads the unwinder, in about a fifth of a second, and attaches nothing. It
// needs CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE; it does without
// CAP_SYS_RESOURCE. When ctx ends so does the unwinder's work, but only Close
// frees it.
func Start(ctx context.Context, opts Options) (*Unwinder, error) {
	// Its own messages are not for our users: what matters is counted.
	profilerlog.SetLogger(*slog.New(slog.DiscardHandler))

	if opts.users == nil {
		users, err := newUserTable(opts.Maps)
		if err != nil {
			return nil, fmt.Errorf("load stack capture: %w", err)
		}
		opts.users = users
	}
	k, load, err := newKernel(opts)
	if err != nil {
		return nil, fmt.Errorf("load stack capture: %w", err)
	}
	loaded := make(chan error, 1)
	go func() { loaded <- load() }()
	memo, memoErr := opts.openMemo()
	ctx, cancel := context.WithCancel(ctx)
	known := &knownProcesses{kernel: k.maps["unwind_processes"]}
	u := &Unwinder{
		kernel: k, known: known, codes: newCodeWatch(known), cancel: cancel, ending: ctx.Done(), worked: make(chan struct{}), schedule: newSchedule(),
		opts: opts, first: opts.First, analyse: make(gate, 1), mappings: make(map[uint32][]proc.Mapping),
		memo: memo, memoErr: memoErr, ahead: newAhead(memo), aheadDone: make(chan struct{}),
	}
	if err := u.manageProcesses(ctx); err != nil {
		cancel()
		return nil, errors.Join(fmt.Errorf("start unwinder: %w", err), <-loaded, k.close(), memo.Close())
	}
	go func() {
		defer close(u.worked)
		u.work(ctx)
	}()
	go func() {
		defer close(u.aheadDone)
		u.ahead.run(ctx)
	}()
	for _, pid := range opts.First {
		u.Changed(pid, 0)
	}
	err = <-loaded
	if err == nil {
		err = u.startCopies()
	}
	if k.freed != nil && k.memoErr == nil {
		u.codes.start(ctx, k.freed)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("load stack capture: %w", err), u.Close())
	}
	return u, nil
}

// manageProcesses starts the unwinder's Go side, which raises RLIMIT_MEMLOCK for a
// moment. Without CAP_SYS_RESOURCE it cannot, and deletes mappings one by one.
func (u *Unwinder) manageProcesses(ctx context.Context) (err error) {
	interpreters := interpreterconfig.NoInterpreters()
	interpreters.Python = python.Config{}
	handler, err := processmaps.LoadMaps(ctx, interpreters, u.kernel.maps, u.kernel.deltas)
	if err != nil {
		return err
	}
	u.tables = newTables(handler, u.kernel)
	u.processes, err = processmanager.New(ctx, processmanager.Config{
		InterpretersConfig:    interpreters,
		MonitorInterval:       time.Minute, // of metrics that nobody reads
		ExecutableUnloadDelay: time.Minute,
		EbpfHandler:           u.tables,
		StackDeltaProvider:    provider{u.tables},
	})
	return err
}

// closePatience bounds how long Close waits for an analysis, and for each library that
// is analysed ahead: they read what a target's file system gives.
const closePatience = 5 * time.Second

// Close frees what u holds in the kernel. Probes that run its return program must be
// detached before. If an analysis does not end, Close fails: the kernel then frees
// all when this process ends.
func (u *Unwinder) Close() error {
	u.cancel()
	err := u.closeCopies()
	if failed := u.codes.close(); failed != nil {
		return errors.Join(err, fmt.Errorf("close stack capture: %w", failed))
	}
	ctx, cancel := context.WithTimeout(context.Background(), closePatience)
	defer cancel()
	if err := u.analyse.lock(ctx); err != nil {
		pid, _ := u.Busy()
		return fmt.Errorf("close stack capture: the analysis of process %d does not end", pid)
	}
	<-u.worked
	u.settling.Wait()
	select {
	case <-u.aheadDone:
	case <-ctx.Done():
		return errors.New("close stack capture: a library that was analysed ahead cannot be read to its end")
	}
	u.processes.Close()
	return errors.Join(err, u.kernel.close(), u.memo.Close())
}
