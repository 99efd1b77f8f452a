//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/atomicfile"
	"github.com/gpumemtrace/gpumemtrace/internal/heap"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/output/export"
	"github.com/gpumemtrace/gpumemtrace/internal/source/launch"
	"github.com/gpumemtrace/gpumemtrace/internal/source/removal"
	"github.com/gpumemtrace/gpumemtrace/internal/source/session"
)

// check finds what is wrong with the command line before anything starts.
func (f *traceFlags) check() error {
	targets := 0
	for _, given := range []bool{len(f.pids) > 0, f.all, len(f.command) > 0} {
		if given {
			targets++
		}
	}
	switch {
	case targets == 0:
		return usagef("nothing to trace: give -p PID, -a, or -- CMD")
	case targets > 1:
		return usagef("give only one of -p, -a and -- CMD")
	case f.duration < 0 || f.interval < 0:
		return usagef("a duration cannot be negative")
	case f.RecordMax > 0 && f.record == "":
		return usagef("--record-max needs --record")
	case f.freeStacks && (!f.Tensors || f.record == ""):
		return usagef("--free-stacks needs --tensors and --record: only a recording can store where tensors were freed")
	case f.traceMax < 0:
		return usagef("--trace-max cannot be negative")
	}
	for _, pid := range f.pids {
		if pid <= 0 {
			return usagef("%d is not a process id", pid)
		}
	}
	if err := f.Trace.Check(); err != nil {
		return usageError{err}
	}
	return f.checkRecording()
}

// checkRecording finds out before the trace whether a recording can be written.
func (f *traceFlags) checkRecording() error {
	switch {
	case f.record == "":
		return nil
	case f.record == "-":
		return usagef("--record cannot write to stdout: give a file name")
	case f.output != "" && f.output != "-" && samePath(f.record, f.output):
		return usagef("-o and --record name the same file")
	}
	return atomicfile.Check(f.record, f.force)
}

func samePath(a, b string) bool {
	x, err := filepath.Abs(a)
	y, failed := filepath.Abs(b)
	return err == nil && failed == nil && x == y
}

// writeNow is the signal by which users ask for a numbered file.
const writeNow = syscall.SIGUSR1

// trace runs one trace from start to written profile.
func trace(f *traceFlags) error {
	if err := f.check(); err != nil {
		return err
	}
	if err := f.leaks.check(); err != nil {
		return err
	}
	out, err := newOutput(&f.outputFlags, formats())
	if err != nil {
		return err
	}
	if out.format.Series {
		return usagef("a trace cannot write the %s format: trace with --record FILE, then run gpumemtrace convert FILE -o %s", out.format.Name, out.path)
	}
	log := newLogger(&f.outputFlags)
	oom, err := newOOMWriter(f.OOMDir, log)
	if err != nil {
		return err
	}
	if oom != nil && f.record != "" && f.Tensors {
		oom.dir.Explain(func() string { return f.record }, log.warn)
	}

	user := watchSignals()
	f.layout = out.format.Layout
	s, child, err := f.start(log, oom, launch.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
	if err != nil {
		return err
	}
	defer oom.finish() // once the recording is whole
	defer f.closeSession(s, log)
	r := running{flags: f, session: s, out: out, leaks: newLeakWatch(&f.leaks), user: user, log: log}
	if child != nil {
		if err := child.Release(); err != nil {
			return err
		}
		r.job = child
	}
	return r.toTheEnd()
}

// start puts the probes on. A command is held before its program runs: it must be
// released. The session must be closed.
func (f *traceFlags) start(log logger, oom *oomWriter, with launch.Streams) (*session.Session, *launch.Command, error) {
	ready, err := newReadyFile(f.readyFile, f.force)
	if err != nil {
		return nil, nil, err
	}
	var child *launch.Command
	pids := slices.Compact(slices.Sorted(slices.Values(f.pids))) // -p 7 -p 7 is one process
	if len(f.command) > 0 {
		if child, err = launch.Hold(f.command, with); err != nil {
			return nil, nil, err
		}
		pids = []int{child.PID()}
	}
	o := f.Options()
	o.PIDs, o.All, o.Follow, o.Held, o.RequireCUDA = pids, f.all, !f.noFollow, child != nil, f.requireCUDA
	o.FreeStacks, o.Layout, o.Remember, o.GPUMemory = f.freeStacks, f.layout, f.traceMax, f.gpuMemory
	o.NoMemo, o.VerifyStacks, o.OutOfMemory = f.noMemo, f.verify, oom.reports(&f.outputFlags)
	o.Recording, o.ForceRecording, o.RecordingOptions = f.record, f.force, record.WriterOptions{MaxBytes: f.RecordMax}
	o.Heaps.Keys, o.Heaps.Fresh = heap.Keys(f.keys), true
	o.Heaps.Ends = f.readsEnds()
	o.Warn, o.Version, o.CommandLine = log.warn, version, f.commandLine
	s, err := session.Start(o)
	if err == nil {
		if err = ready.write(); err != nil {
			f.closeSession(s, log)
		}
	}
	if err != nil {
		if child != nil {
			child.Kill()
		}
		return nil, nil, err
	}
	return s, child, nil
}

// closeSession ends what start began.
func (f *traceFlags) closeSession(s *session.Session, log logger) {
	watched := removal.Watch(log.warn)
	err := s.Close()
	watched()
	if err != nil {
		log.warn(err.Error())
	}
	log.recorded(f.record)
}

// A running trace has its probes on.
type running struct {
	flags   *traceFlags
	session tracer
	job     job // nil for none
	out     *output
	leaks   *leakWatch
	user    signals
	log     logger
}

// A tracer is what a running trace asks of its *session.Session.
type tracer interface {
	Target() string
	Done() <-chan struct{}
	Failed() <-chan error
	Stop() error
	Read(func(*state.State))
	View(state.Want) *state.View
	Report(state.Want) *state.View
}

// A job is the command that was started to be traced: *launch.Command.
type job interface {
	Signal(os.Signal) error
	Wait() (code int, err error)
}

// toTheEnd waits for the end of the trace and writes what was seen, also when
// something failed. It returns when the command has ended too.
func (r *running) toTheEnd() error {
	var exited <-chan error
	if r.job != nil {
		exited = ending(r.job)
	}
	r.log.started(r.session.Target(), r.job == nil)
	stop, shown := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(shown)
		if r.flags.readsEnds() {
			r.atFirst(stop)
		}
	}()
	ended, failed := r.collect()
	close(stop)
	<-shown
	if failed != nil {
		r.log.warn(fmt.Sprintf("the trace ends early: %v", failed))
	}
	failed = errors.Join(failed, r.session.Stop(), r.finish())
	if r.job != nil {
		// Ctrl-C reaches the command by itself; what else ended the trace came
		// to this process, and whoever sent it means both.
		if ended != 0 && ended != syscall.SIGINT {
			_ = r.job.Signal(ended) // it may have ended
		}
		// The command's exit code says nothing of a failure here.
		if err := <-exited; failed == nil {
			return err
		}
	}
	return failed
}

// readsEnds reports whether heaps are read at the beginning and the end: of processes that may have been
// there before the trace.
func (f *traceFlags) readsEnds() bool {
	return len(f.pids) > 0 && f.holdersGiven != nil && !f.holdersGiven()
}

// driverPatience bounds the wait for what NVIDIA's driver says of the processes.
const driverPatience = 2 * time.Second

// atFirst reads what the processes hold when the trace begins, and shows it, unless the trace stops before.
func (r *running) atFirst(stop <-chan struct{}) {
	known := func() bool {
		accounts := r.session.View(state.Want{Driver: true}).Snapshot().Accounts
		return slices.ContainsFunc(accounts, func(a snapshot.Account) bool { return a.DriverKnown })
	}
	for end := time.Now().Add(driverPatience); time.Now().Before(end) && !known(); {
		select {
		case <-stop:
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
	select {
	case <-stop:
		return
	default:
	}
	snap := r.session.View(r.out.want(&r.flags.outputFlags, false)).Snapshot()
	if !r.log.quiet {
		_ = export.Held(os.Stderr, snap, layout(os.Stderr)) // the trace goes on
	}
}

// ending returns a channel that receives how a job ended.
func ending(j job) <-chan error {
	exited := make(chan error, 1)
	go func() {
		code, err := j.Wait()
		if err == nil && code != 0 {
			err = exitError(code)
		}
		exited <- err
	}()
	return exited
}

// finish writes the profile and what is printed at the end.
func (r *running) finish() (err error) {
	if r.out.failed > 0 {
		err = fmt.Errorf("%d numbered files could not be written", r.out.failed)
	}
	view := r.session.Report(r.out.want(&r.flags.outputFlags, r.leaks.live()))
	snap := view.Snapshot()
	snap.Meta.Peaks = snap.Ended()
	failed := r.out.write(snap)
	r.log.summary(snap)
	if failed == nil {
		r.log.wrote(r.out)
	}
	err = errors.Join(err, failed)
	to := os.Stdout
	if r.out.path == "-" {
		to = os.Stderr
	}
	return errors.Join(err, r.leaks.finish(view, snap, to, layout(to)))
}

// collect waits for the end of the trace and writes numbered files until then.
// It returns the signal that ended it, 0 if none did.
func (r *running) collect() (syscall.Signal, error) {
	var timeout, tick <-chan time.Time
	if r.flags.duration > 0 {
		timeout = time.After(r.flags.duration)
	}
	if r.flags.interval > 0 {
		ticker := time.NewTicker(r.flags.interval)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		select {
		case <-timeout:
			return 0, nil
		case <-r.session.Done():
			return 0, nil
		case err := <-r.session.Failed():
			return 0, err
		case sig := <-r.user.stop:
			return sig, nil
		case <-r.leaks.tick():
			r.session.Read(r.leaks.observe)
			continue
		case <-tick:
		case <-r.user.now:
		}
		// A disk that is full now must not end the trace.
		if err := r.out.writeNumbered(r.session.Report(r.out.want(&r.flags.outputFlags, false)).Snapshot()); err != nil {
			r.out.failed++
			r.log.warn(err.Error())
		}
	}
}
