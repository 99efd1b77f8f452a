package unwind

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"go.opentelemetry.io/ebpf-profiler/times"
	"golang.org/x/sync/errgroup"

	"github.com/gpumemtrace/gpumemtrace/internal/source/clock"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// ErrNotAnalyzed says that the unwinder does not know a process: the process ended, or
// its mappings cannot be read.
var ErrNotAnalyzed = errors.New("process not analysed")

// Analyze reads the mappings of the process pid (in the tracer's PID
// namespace), and returns when all stacks that lie in them can be unwound: 25
// ms for a small program, a second for PyTorch, a fifth of that when its tables
// are remembered. Call it again when a library was loaded. It starts the
// process's part of the memo afresh. When ctx ends it fails; an analysis that
// has begun goes on by itself.
func (u *Unwinder) Analyze(ctx context.Context, pid int) error {
	done := make(chan error, 1)
	go func() {
		if err := u.analyse.Acquire(ctx, 1); err != nil {
			done <- err
			return
		}
		tables, err := u.analyzeLocked(pid, nil)
		u.analyse.Release(1)
		if err == nil {
			err = u.finish(pid, tables)
		}
		done <- err
	}()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("analyse process %d: %w", pid, err)
	}
	return nil
}

// analyzeLocked analyses a process, or only its fresh mappings if the process is known. It
// returns the tables that are being loaded into the kernel, which finish waits for.
func (u *Unwinder) analyzeLocked(pid int, fresh []proc.Mapping) (*errgroup.Group, error) {
	tables := u.synchronize(uint32(pid), fresh)
	if !u.kernel.known(uint32(pid)) {
		// Its predecessor of the same PID may not be forgotten yet.
		u.processes.ProcessedUntil(times.GetKTime())
		tables = u.synchronize(uint32(pid), nil)
	}
	if !u.kernel.known(uint32(pid)) {
		return nil, ErrNotAnalyzed
	}
	return tables, nil
}

// finish waits until the kernel can use the tables of an analysis, and then restarts the
// process's part of the memo. Other analyses may run at the same time.
func (u *Unwinder) finish(pid int, tables *errgroup.Group) error {
	if err := tables.Wait(); err != nil {
		return err
	}
	if u.analyse.Acquire(u.ctx, 1) != nil {
		return ErrNotAnalyzed
	}
	defer u.analyse.Release(1)
	if !u.kernel.known(uint32(pid)) {
		return ErrNotAnalyzed
	}
	return u.Invalidate(pid)
}

// Invalidate empties the process's part of the memo: its mappings changed, or stacks that
// the memo names were dropped.
func (u *Unwinder) Invalidate(pid int) error { return u.known.restartMemo(pid) }

// forget drops what is known of the process pid, which has ended or replaced
// its image. It is called under u.analyse.
func (u *Unwinder) forget(pid int) {
	if !u.kernel.known(uint32(pid)) {
		return // never analysed: most children of a shell end before an analysis would
	}
	delete(u.mappings, uint32(pid))
	delete(u.pythons.processes, uint32(pid))
	_ = u.known.forget(pid)
	// The unwinder would use what it knows of the old image's Python for the new image,
	// unless the process ended in between.
	ended := u.newAnalysis(pid)
	ended.err = os.ErrNotExist
	u.processes.SynchronizeProcess(ended)
	if !gone(pid) {
		u.processes.ProcessedUntil(times.GetKTime())
		u.synchronize(uint32(pid), nil)
	}
}

// look is the interval at which the kernel side's requests for analyses are read, and
// cleanup the interval at which processes that ended unnoticed are forgotten.
const (
	look    = 200 * time.Millisecond
	cleanup = 5 * time.Second
)

// work analyses and forgets processes as they come due, until ctx ends.
func (u *Unwinder) work(ctx context.Context) {
	reports := time.NewTimer(clock.Until(look))
	defer reports.Stop()
	cleanups := time.NewTimer(clock.Until(cleanup))
	defer cleanups.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-u.schedule.wake:
		case <-reports.C:
			reports.Reset(clock.Until(look))
			for _, pid := range u.kernel.reported() {
				u.Changed(int(pid), 0)
			}
		case now := <-cleanups.C:
			cleanups.Reset(clock.Until(cleanup))
			// Stacks of processes that ended since the last cleanup may still come.
			if u.analyse.Acquire(ctx, 1) == nil {
				u.processes.ProcessedUntil(times.GetKTime() - times.KTime(time.Since(now)+cleanup))
				u.processes.CleanupPIDs()
				maps.DeleteFunc(u.mappings, func(pid uint32, _ []proc.Mapping) bool { return !u.kernel.known(pid) })
				maps.DeleteFunc(u.pythons.processes, func(pid uint32, _ bool) bool { return !u.kernel.known(pid) })
				u.analyse.Release(1)
			}
		}
		ended, due, fresh := u.schedule.next(time.Now())
		if len(ended)+len(due)+len(fresh) == 0 || u.analyse.Acquire(ctx, 1) != nil {
			continue
		}
		for _, pid := range ended {
			u.forget(pid)
		}
		for pid, mappings := range fresh {
			u.analyzeSoon(pid, mappings)
		}
		for _, pid := range due {
			u.analyzeSoon(pid, nil)
		}
		u.busy.Set(0)
		u.analyse.Release(1)
	}
}

// analyzeSoon analyses a process, and does not wait for its tables. A process that has
// ended cannot be analysed. If stacks of it still come, they are counted as incomplete.
func (u *Unwinder) analyzeSoon(pid int, fresh []proc.Mapping) {
	u.busy.Set(pid)
	if tables, err := u.analyzeLocked(pid, fresh); err == nil {
		u.finishing.Go(func() { _ = u.finish(pid, tables) })
	}
}

// largeAnalysis is the processor time of an analysis after which its memory is returned to
// the system at once.
const largeAnalysis = 100 * time.Millisecond

// synchronize reads the mappings of a process. If it is given fresh ones, it adds them to
// those that are known. It is called under u.analyse.
func (u *Unwinder) synchronize(pid uint32, fresh []proc.Mapping) *errgroup.Group {
	var tables *errgroup.Group
	user, _ := u.opts.users.userOf(int(pid))
	u.opts.Meter.Do(user, func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		began := clock.Thread()
		tables = u.readProcess(pid, fresh)
		// By processor time: a small analysis takes long too where others use the processors.
		if clock.Thread()-began > largeAnalysis {
			go debug.FreeOSMemory()
		}
	})
	return tables
}

// readProcess is what synchronize measures.
func (u *Unwinder) readProcess(pid uint32, fresh []proc.Mapping) *errgroup.Group {
	tables := new(errgroup.Group)
	u.tables.loading = tables
	a := u.newAnalysis(int(pid))
	u.tables.analysis = a
	defer a.close()
	known := u.mappings[pid]
	if len(fresh) > 0 && known != nil {
		a.mappings = merge(known, fresh)
	} else {
		a.mappings, a.err = readMappings(int(pid))
	}
	u.pythons.add(pid, a.mappings)
	a.prepare(known)
	u.processes.SynchronizeProcess(a)
	if delete(u.mappings, pid); u.kernel.known(pid) && a.err == nil && len(a.mappings) <= maxKept {
		u.mappings[pid] = a.mappings
	}
	u.finishing.Go(func() { _ = tables.Wait() }) // finish has its error
	return tables
}

// reported returns the processes for which the kernel side requests an analysis.
func (k *kernel) reported() []uint32 {
	var events []uint64 // PID and TID
	var event uint64
	var value bool
	for it := k.maps["pid_events"].Iterate(); it.Next(&event, &value); {
		events = append(events, event)
	}
	var pids []uint32
	for _, event := range events {
		if pid := uint32(event >> 32); k.maps["pid_events"].Delete(event) == nil && !slices.Contains(pids, pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// known reports whether the unwinder has the mappings of pid.
func (k *kernel) known(pid uint32) bool {
	// struct PIDPage, and the page 0 that stands for the process.
	var key [16]byte
	binary.NativeEndian.PutUint32(key[:], 96)
	binary.BigEndian.PutUint32(key[4:], pid)
	value, err := k.maps["pid_page_to_mapping_info"].LookupBytes(key[:])
	return err == nil && value != nil
}

// gone reports whether a process has no memory any more. Its mappings disappear before /proc
// shows that it has ended.
func gone(pid int) bool {
	if proc.Ended(pid) {
		return true
	}
	for _, err := range proc.Mappings(pid) {
		return err != nil
	}
	return true
}
