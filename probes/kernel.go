package probes

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/gpumemtrace/gpumemtrace/bpf"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

const (
	enterProgram  = "gm_call_enter"
	backProgram   = "gm_call_back" // of sessions
	exitProgram   = "gm_call_exit" // unless a StackTaker has one
	tensorProgram = "gm_tensor_enter"
	// startsProgram iterates over processes (Tracer.Identify).
	startsProgram = "gm_starts"
)

// lifePrograms are the programs of raw tracepoints, by tracepoint.
var lifePrograms = map[string]string{
	"sched_process_fork": "gm_fork", "sched_process_exec": "gm_exec", "sched_process_exit": "gm_exit",
}

// kernel is the kernel side: its maps, and its programs.
type kernel struct {
	coll  *ebpf.Collection
	progs programs
	life  []link.Link
	// exit runs at a return. loaded waits until it does: in a session that may be after the
	// probes are on.
	exit    *ebpf.Program
	ownExit bool // close closes it
	loaded  func() error

	mu       sync.Mutex
	measured RunTime
}

// openKernel loads the maps, then the programs. Nearly all of the time is the verifier's. In a
// session it leaves those of the StackTaker to k.loaded.
func openKernel(opts *Options) (_ *kernel, err error) {
	k := &kernel{}
	defer func() {
		if err != nil {
			k.close()
		}
	}()
	types := btf.NewCache()
	go func() { _, _ = types.Kernel() }() // takes 10 ms; load has its error
	spec, err := bpf.LoadGpumemtrace()
	if err != nil {
		return nil, fmt.Errorf("read the kernel side: %w", err)
	}
	attach := attachType
	if opts.attach != nil {
		attach = opts.attach
	}
	k.progs.attach = attach()
	constants, err := opts.constants(k.progs.attach)
	if err != nil {
		return nil, err
	}
	for name, v := range constants {
		if err := spec.Variables[name].Set(v); err != nil {
			return nil, fmt.Errorf("configure the kernel side: %w", err)
		}
	}
	if opts.change != nil {
		opts.change(spec)
	}
	// All programs that share a program array are of one kind (bpf_prog_map_compatible).
	spec.Programs[enterProgram].AttachType = k.progs.attach
	spec.Programs[backProgram].AttachType = k.progs.attach
	spec.Programs[exitProgram].AttachType = k.progs.attach
	spec.Programs[tensorProgram].AttachType = k.progs.attach

	own := maps.Clone(spec.Maps)
	maps.DeleteFunc(own, func(name string, _ *ebpf.MapSpec) bool { return strings.HasPrefix(name, ".") }) // constants
	made, err := bpf.NewMaps(own)
	if err != nil {
		return nil, fmt.Errorf("load the kernel side: %w", err)
	}
	k.coll = &ebpf.Collection{Maps: made}
	failed := make(chan error, 1)
	go func() { failed <- k.loadExit(opts, spec, constants, types) }()
	k.loaded = sync.OnceValue(func() error { return <-failed })
	names := append(slices.Collect(maps.Values(lifePrograms)), enterProgram, tensorProgram, startsProgram)
	if k.progs.attach == attachSession {
		names = append(names, backProgram)
	}
	if k.coll.Programs, err = k.load(spec, types, names...); err != nil {
		return nil, err
	}
	k.progs.enter, k.progs.exit, k.progs.tensor = k.coll.Programs[enterProgram], k.coll.Programs[backProgram], k.coll.Programs[tensorProgram]
	if k.progs.attach != attachSession {
		if err := k.loaded(); err != nil {
			return nil, err
		}
		k.progs.exit = k.exit
	}
	return k, k.fill(opts)
}

// loadExit loads the program that runs at a return: the StackTaker's, or else the one that
// follows frame pointers.
func (k *kernel) loadExit(opts *Options, spec *ebpf.CollectionSpec, constants map[string]any, types *btf.Cache) (err error) {
	if opts.Stacks != nil {
		if k.exit, err = opts.Stacks.Load(k.coll.Maps, constants, k.progs.attach, types); err != nil {
			return err
		}
	}
	if k.exit == nil {
		loaded, err := k.load(spec, types, exitProgram)
		if err != nil {
			return err
		}
		k.exit, k.ownExit = loaded[exitProgram], true
	}
	if err := k.coll.Maps["exits"].Put(uint32(0), k.exit); err != nil {
		return fmt.Errorf("load the kernel side: %w", err)
	}
	return nil
}

// load loads programs of spec over the maps.
func (k *kernel) load(spec *ebpf.CollectionSpec, types *btf.Cache, names ...string) (map[string]*ebpf.Program, error) {
	loaded, err := bpf.LoadPrograms(spec, k.coll.Maps, types, 0, names...)
	if err != nil {
		return nil, fmt.Errorf("load the kernel side: %w", err)
	}
	return loaded, nil
}

// fill writes the table of functions into the maps.
func (k *kernel) fill(opts *Options) error {
	for i := range Entries {
		if err := k.coll.Maps["rows"].Put(uint32(i), Entries[i].plan.kernelRow(opts.class(i), runtime.GOARCH)); err != nil {
			return fmt.Errorf("fill the table of functions: %w", err)
		}
	}
	for number, e := range kernelEscapes() {
		if err := k.coll.Maps["escapes"].Put(uint32(number), e); err != nil {
			return fmt.Errorf("fill the table of the kernel driver's calls: %w", err)
		}
	}
	return nil
}

// watchLives starts the events of processes' lives.
func (k *kernel) watchLives() error {
	for name, program := range lifePrograms {
		l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: name, Program: k.coll.Programs[program]})
		if err != nil {
			return fmt.Errorf("watch %s: %w", name, err)
		}
		k.life = append(k.life, l)
	}
	return nil
}

// unwatchLives ends them.
func (k *kernel) unwatchLives() (err error) {
	for _, l := range k.life {
		err = errors.Join(err, l.Close())
	}
	k.life = nil
	return err
}

func (k *kernel) close() {
	_ = k.unwatchLives()
	if k.loaded != nil {
		_ = k.loaded() // it uses the maps
	}
	if k.ownExit {
		k.exit.Close()
	}
	if k.coll != nil {
		k.coll.Close()
	}
}

// programs returns all programs that run for the trace, with that of the StackTaker, once they
// are loaded.
func (k *kernel) programs() []*ebpf.Program {
	return append(slices.Collect(maps.Values(k.coll.Programs)), k.exit)
}

// lost reads the i-th counter of loss. An error is impossible while the map is open.
func (k *kernel) lost(i int) (n uint64) {
	_ = k.coll.Maps["loss"].Lookup(uint32(i), &n)
	return n
}

// A RunTime is the measured time of the programs' runs, which is time of the traced processes, and
// how long the kernel measured it.
type RunTime struct {
	Run, Measured time.Duration
	Runs          uint64
}

// measure measures for d, or until ctx ends.
func (k *kernel) measure(ctx context.Context, d time.Duration) error {
	on, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return fmt.Errorf("measure BPF programs: %w", err)
	}
	defer on.Close()
	begin, before := time.Now(), k.stats()
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	after := k.stats()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.measured.Run += after.Runtime - before.Runtime
	k.measured.Runs += after.RunCount - before.RunCount
	k.measured.Measured += time.Since(begin)
	return nil
}

func (k *kernel) runTime() RunTime {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.measured
}

// stats returns the kernel's sums over the programs.
func (k *kernel) stats() (sum ebpf.ProgramStats) {
	for _, p := range k.programs() {
		if s, err := p.Stats(); err == nil {
			sum.Runtime += s.Runtime
			sum.RunCount += s.RunCount
			sum.RecursionMisses += s.RecursionMisses
		}
	}
	return sum
}

// identify returns the process that has a PID now. The error is os.ErrNotExist if there is none.
func (k *kernel) identify(pid uint32) (event.Process, error) {
	iterator, err := tasks(k.coll.Programs[startsProgram], pid)
	if err != nil {
		return event.Process{}, err
	}
	defer iterator.Close()
	r, err := iterator.Open()
	if err != nil {
		return event.Process{}, err
	}
	defer r.Close()
	var s struct { // struct gm_start
		Start       uint64
		PID, Unused uint32
	}
	for {
		switch err := binary.Read(r, binary.NativeEndian, &s); {
		case errors.Is(err, io.EOF):
			return event.Process{}, os.ErrNotExist
		case err != nil:
			return event.Process{}, err
		case s.PID == pid:
			return process(s.PID, s.Start), nil
		}
	}
}

// tasks returns an iterator that runs a program on the process with a PID. Before Linux 6.1,
// which ignores the PID, it runs on all processes.
func tasks(prog *ebpf.Program, pid uint32) (*link.Iter, error) {
	fd, err := linkCreate(unsafe.Pointer(&struct {
		prog, target, attachType, flags uint32
		info                            *uint32 // union bpf_iter_link_info: a thread's number
		size, _                         uint32
	}{
		prog: uint32(prog.FD()), attachType: uint32(ebpf.AttachTraceIter), info: &pid, size: uint32(unsafe.Sizeof(pid)),
	}), 32)
	runtime.KeepAlive(prog)
	if err != nil {
		return nil, err
	}
	l, err := link.NewFromFD(fd)
	if err != nil {
		return nil, err
	}
	return l.(*link.Iter), nil
}
