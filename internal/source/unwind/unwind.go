// Package unwind captures complete user stacks, native and Python, where a call
// returns. It is the only package that imports go.opentelemetry.io/ebpf-profiler,
// whose Go side analyses processes (.eh_frame, CPython's structures) and writes the
// results into BPF maps. Our own programs read these maps (bpf/unwind.bpf.c): they unwind,
// and have the memo, Python's names and the events.
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
	"golang.org/x/sync/semaphore"

	"github.com/gpumemtrace/gpumemtrace/internal/source/filememo"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
	"github.com/gpumemtrace/gpumemtrace/internal/source/work"
)

// Options say how to capture stacks. Only Maps is required.
type Options struct {
	// Maps are the maps of the caller's programs, by name: events, rows, loss,
	// threads, spare_threads, targets, users, stacks_seen.
	Maps  map[string]*ebpf.Map
	users *userTable // of Maps, made by Start if nil
	// object returns the parsed object file, which one Start may use.
	object func() (*ebpf.CollectionSpec, error)
	// Constants are the caller's cfg_ variables, by name.
	Constants map[string]any
	// Attach is how the exit program will be attached: ebpf.AttachNone for
	// perf-type uprobes, ebpf.AttachTraceUprobeMulti.
	Attach ebpf.AttachType
	// Types are the kernel's types, which take 10 ms to read.
	Types *btf.Cache
	// First are processes whose analysis begins while programs are loaded.
	First []int
	// NoMemo unwinds every stack in full.
	NoMemo bool
	// Modules makes stacks differ by the modules of PyTorch that were called, and have them.
	Modules bool
	// VerifyStacks, if it is n and not 0, unwinds every n-th memo hit in full and
	// compares.
	VerifyStacks uint32
	// CacheDir is where unwind tables are stored for later runs, "" for nowhere.
	CacheDir string
	// Meter, if set, measures the work for each user, by the user's number in the caller's
	// programs.
	Meter *work.Meter
}

// CacheDir is the usual one of Options.
const CacheDir = "/var/cache/gpumemtrace"

// The unwind tables of one PyTorch process take 10 to 30 MiB.
const (
	cacheLimit  = 256 << 20
	memoryLimit = 64 << 20
)

// openMemo returns the store of unwind tables, and why it is not in CacheDir.
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
	ctx       context.Context // ends with the unwinder's work
	cancel    context.CancelFunc
	worked    chan struct{} // closed when the worker has ended
	opts      Options
	analyse   *semaphore.Weighted       // one at a time
	memo      *filememo.Memo            // of unwind tables
	memoErr   error                     // why it is not in CacheDir
	mappings  map[uint32][]proc.Mapping // by process, as of its last analysis; under analyse
	finishing sync.WaitGroup            // analyses whose tables are being loaded
	schedule  *schedule
	busy      work.Busy
	copies    copies
	known     *knownProcesses

	unnamed atomic.Uint64 // Python frames
	pythons unknownPythons
}

// Start loads the unwinder, in about a tenth of a second, and attaches nothing. It
// needs CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE; it does without
// CAP_SYS_RESOURCE. When ctx ends so does the unwinder's work, but only Close
// frees it.
func Start(ctx context.Context, opts Options) (*Unwinder, error) {
	// Its own messages are not for our users: counters have what matters.
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
	opts.Types, opts.object = nil, nil // load has them
	loaded := make(chan error, 1)
	go func() { loaded <- load() }()
	memo, memoErr := opts.openMemo()
	ctx, cancel := context.WithCancel(ctx)
	u := &Unwinder{
		kernel: k, known: &knownProcesses{kernel: k.maps["unwind_processes"]}, ctx: ctx, cancel: cancel, worked: make(chan struct{}), schedule: newSchedule(),
		opts: opts, analyse: semaphore.NewWeighted(1), mappings: make(map[uint32][]proc.Mapping),
		memo: memo, memoErr: memoErr,
	}
	if err := u.manageProcesses(ctx); err != nil {
		cancel()
		k.close()
		return nil, errors.Join(fmt.Errorf("start unwinder: %w", err), <-loaded, memo.Close())
	}
	go func() {
		defer close(u.worked)
		u.work(ctx)
	}()
	for _, pid := range opts.First {
		u.Changed(pid, 0)
	}
	err = <-loaded
	if err == nil {
		err = u.startCopies()
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
	handler, err := processmaps.LoadMaps(ctx, interpreters, u.kernel.maps, u.kernel.table)
	if err != nil {
		return err
	}
	u.tables = newTables(handler, u.kernel)
	u.tables.processes = u.known
	u.processes, err = processmanager.New(ctx, processmanager.Config{
		InterpretersConfig:    interpreters,
		MonitorInterval:       time.Minute, // of metrics that nobody reads
		ExecutableUnloadDelay: time.Minute,
		EbpfHandler:           u.tables,
		StackDeltaProvider:    provider{u.tables},
	})
	return err
}

// closePatience bounds how long Close waits for an analysis: it reads files of targets.
const closePatience = 5 * time.Second

// Close frees what u holds in the kernel. Detach the probes that run its return program
// before. If an analysis does not end, Close fails: the kernel then frees everything when
// this process ends.
func (u *Unwinder) Close() error {
	u.cancel()
	err := u.closeCopies()
	ctx, cancel := context.WithTimeout(context.Background(), closePatience)
	defer cancel()
	if err := u.analyse.Acquire(ctx, 1); err != nil {
		pid, _ := u.busy.Process()
		return fmt.Errorf("close stack capture: the analysis of process %d does not end", pid)
	}
	<-u.worked
	u.finishing.Wait()
	u.processes.Close()
	u.kernel.close()
	return errors.Join(err, u.memo.Close())
}
