// Package probes turns calls of CUDA's functions, in unmodified processes, into events.
//
// # Which calls
//
// Table (table.go, escape.go) has a row for each function: its symbols, where each value is, and
// what it does. newPlan assigns each value a slot of the event. kernel.fill writes the rows into
// the kernel side's table.
//
// A finder (finder.go) finds the libraries that processes map: those of a target, and those that
// the sideband reports. libraries (libraries.go) puts probes on a file for its first claim and
// removes them after the last one. makeRoom (shares.go) decides whether there is room.
// Library.sites chooses the functions, attach (attach.go) puts the probes on.
//
// # One event
//
//  1. The function is entered: gm_enter (bpf/calls.h) stores the arguments.
//  2. It returns: gm_leave reads the values that the row asks for, the program takes the stack,
//     and gm_finish puts the event into the ring buffer.
//  3. Tracer.Run, reader.run and reader.batch (reader.go) read a record of it.
//  4. decoder.decode (decode.go) reads its header, plan.fill (plan.go) its values, and the row's
//     Fix (fix.go, escape.go) computes the others.
//  5. follower.Event updates the process's libraries if it is a fork, an exec or an exit, and
//     passes the event.Event on to the Handler.
//
// No step goes back to one before.
package probes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/source/clock"
)

// A Tracer traces processes.
type Tracer struct {
	opts     Options
	loss     *loss.Set
	warnings *warnings
	system   *systemLibraries
	libs     *libraries
	kernel   *kernel
	targets  *targets
	reader   *reader
	finder   *finder
	guard    *guard
	prepared int // libraries that Open probed

	side    *sideband
	workers sync.WaitGroup // of the sideband and the finder
}

// Open loads the kernel side. With Options.Ahead it probes the CUDA libraries that a program
// started now would load, so that no call is missed. If probes are confined to a target, Target
// does so.
func Open(opts Options) (_ *Tracer, err error) {
	if err := checkPrivilege(); err != nil {
		return nil, err
	}
	t := &Tracer{opts: opts, loss: loss.New(causes), warnings: newWarnings(opts.Warn)}
	t.libs = newLibraries(&t.opts, t.loss, t.warnings)
	t.system = findSystemLibraries(&t.opts)
	defer func() {
		if err != nil {
			err = explain(err)
			t.Close()
		}
	}()
	if t.kernel, err = openKernel(&t.opts); err != nil {
		return nil, err
	}
	maps := t.kernel.coll.Maps
	t.libs.progs, t.libs.gates.times = t.kernel.progs, maps["gates"]
	if t.targets, err = openTargets(maps, opts.Meter); err != nil {
		return nil, err
	}
	if err := t.kernel.watchLives(); err != nil {
		return nil, err
	}
	if t.reader, err = openReader(maps["events"], t.targets, t.loss); err != nil {
		return nil, err
	}
	if t.side, err = openSideband(); err != nil {
		return nil, err
	}
	t.finder = newFinder(&t.opts, t.targets, t.libs)
	t.guard = newGuard(t.libs)
	if t.opts.All { // every process is a target as soon as a library is probed
		if err := t.kernel.loaded(); err != nil {
			return nil, err
		}
	}
	if t.opts.Ahead && !t.opts.confined() {
		if t.prepared, err = t.prepare(0); err != nil {
			return nil, err
		}
	}
	if err := t.kernel.loaded(); err != nil {
		return nil, err
	}
	t.workers.Go(func() { t.side.run(t.finder.mapped, t.finder.lostMappings) })
	t.workers.Go(t.finder.tidy)
	t.workers.Go(t.finder.rescan)
	go t.guard.run(t.finder.stop) // not waited for: it reads a target's file system
	return t, nil
}

// Prepared returns the number of libraries that Open probed.
func (t *Tracer) Prepared() int { return t.prepared }

// prepare probes the CUDA libraries that a program started now would load, so that no call is
// missed, and returns their number. It does so for one process, or with 0 for all. The libraries
// stay probed for good, since the process may replace its image before it loads them.
func (t *Tracer) prepare(pid int) (n int, failed error) {
	libs := t.system.open()
	errs, ok := inTurn(t.finder.work, 0, func() []error { return t.libs.attachAll(libs, claim{only: pid}) })
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

// Target traces pid and probes the CUDA libraries that it maps now, and others when it maps them.
// It returns the libraries that pid maps, except PyTorch's. The error is os.ErrNotExist for a
// process that has ended.
func (t *Tracer) Target(pid int) ([]Library, error) {
	c := claim{pid: pid, at: clock.Monotonic(), only: t.opts.confinedTo(pid)}
	var err error
	if c.user, err = userOf(pid); err == nil {
		err = t.targets.trace(pid, c.user)
	}
	if err != nil {
		return nil, fmt.Errorf("trace process %d: %w", pid, err)
	}
	var libs []Library
	found, ok := inTurn(t.finder.work, c.user, func() func() ([]Library, error) {
		libs, err := t.finder.probe(c)
		return func() ([]Library, error) { return libs, err }
	})
	if !ok {
		t.libs.miss(c, noAnswer)
		return nil, fmt.Errorf("trace process %d: %w", pid, errNotProbed)
	}
	if libs, err = found(); errors.Is(err, errNotProbed) {
		t.libs.miss(c, noSlot)
	}
	if err == nil && t.opts.confined() {
		_, err = t.prepare(pid)
	}
	for _, lib := range libs {
		if lib.Level == Driver {
			err = errors.Join(err, t.libs.glimpse(lib, pid))
		}
	}
	return libs, err
}

// Run passes all events and stacks to h until Stop, and then those that the ring buffer still has.
// afterBatch, if not nil, is called after each batch: h got all records from before the time until
// (CLOCK_MONOTONIC), or, if until is 0, more are waiting.
func (t *Tracer) Run(h Handler, afterBatch func(until time.Duration)) error {
	d := &decoder{}
	if t.opts.API != APIRuntime {
		d.onProcAddress = t.guard.add
	}
	return t.reader.run(d, follower{h, t.libs, t.opts.Stacks, d}, afterBatch)
}

// Wake makes Run read the events that there are now. It has no effect just before Run waits.
func (t *Tracer) Wake() { t.reader.ring.Wake() }

// ForgetStacks makes the kernel side send these stacks again with their next event. An event that
// it sent before may still name one.
func (t *Tracer) ForgetStacks(ids []uint64) {
	for _, id := range ids {
		_ = t.kernel.coll.Maps["stacks_seen"].Delete(id) // evicted already
	}
}

// Identify returns the process that has a PID now, as events name it. /proc cannot distinguish two
// processes that had one PID within a hundredth of a second. The error is os.ErrNotExist if there
// is none.
func (t *Tracer) Identify(pid int) (event.Process, error) {
	id, err := t.kernel.identify(uint32(pid))
	if err != nil {
		err = fmt.Errorf("find out when process %d began: %w", pid, err)
	}
	return id, err
}

// Measure measures the programs' runs for d, or until ctx ends. It needs CAP_SYS_ADMIN and Linux
// 5.8, and adds some 20 ns to each run of any BPF program on the machine in that time.
func (t *Tracer) Measure(ctx context.Context, d time.Duration) error { return t.kernel.measure(ctx, d) }

// RunTime returns the sum of what Measure measured so far.
func (t *Tracer) RunTime() RunTime { return t.kernel.runTime() }

// Costs returns the costs of each user, and of each traced process. It returns a user without a
// process once more, and then forgets the user.
func (t *Tracer) Costs() []Cost { return t.targets.costs() }

// Worked returns the processor time of reading events, for all users together.
func (t *Tracer) Worked() time.Duration { return t.opts.Meter.Of(noPlace) }

// UserOf returns the place of a traced process's user, and whether the process has no stacks
// (ShedAll). The place stands for the user as long as a process of the user is traced. It is 0 for
// a process that is not traced.
func (t *Tracer) UserOf(pid int) (user uint16, shed bool) { return t.targets.userOf(pid) }

// Shed sets what a process sheds, or all processes of a user, now and later. The larger one counts
// for a process. The error is os.ErrNotExist for a process that is not traced, and for a user
// without one. One goroutine may call it.
func (t *Tracer) Shed(c Consumer, s Shed) error { return t.targets.shed(c, s) }

// NotSeen returns the processes that use CUDA and are not traced, or not in full, sorted by user.
func (t *Tracer) NotSeen() []NotSeen { return t.libs.notSeen() }

// Notes returns sentences about what may be missing.
func (t *Tracer) Notes() []string { return append(t.targets.notes(), t.libs.notes()...) }

// Loss returns every cause of loss.
func (t *Tracer) Loss() (out []loss.Counter) {
	for i, c := range kernelCauses {
		out = append(out, c.Counter(t.kernel.lost(i)))
	}
	return append(slices.Concat(out, t.loss.Counters()), runsMissed.Counter(t.kernel.stats().RecursionMisses))
}

// Stop ends the trace: from now on calls make no events, and Run returns after those that there
// are. The probes come off in the background, which takes 20 s if each has a link of its own.
// Close waits for that.
func (t *Tracer) Stop() error {
	t.finder.lookAtAll()
	err := t.halt()
	go func() { _ = t.libs.closeAll() }() // Close has its error
	if t.opts.Stacks != nil {
		t.opts.Stacks.Drain() // into the ring buffer
	}
	if t.reader != nil {
		t.reader.flush()
	}
	return err
}

// halt stops events, and the goroutines that put probes on.
func (t *Tracer) halt() error {
	err := t.libs.shut()
	if t.finder != nil && t.side != nil {
		close(t.finder.stop)
		t.finder.work.Close()
		t.side.halt()
		t.workers.Wait()
		t.side.close()
		t.side = nil
	}
	if t.kernel != nil {
		err = errors.Join(err, t.kernel.unwatchLives())
	}
	return err
}

// Close releases the kernel side. Run must have returned.
func (t *Tracer) Close() error {
	err := errors.Join(t.halt(), t.libs.closeAll())
	if t.reader != nil {
		err = errors.Join(err, t.reader.ring.Close())
	}
	t.system.close()
	if t.targets != nil {
		t.targets.close()
	}
	if t.kernel != nil {
		t.kernel.close()
	}
	return err
}
