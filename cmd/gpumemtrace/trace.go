package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/launch"
	"github.com/gpumemtrace/gpumemtrace/internal/session"
	"github.com/gpumemtrace/gpumemtrace/probes"
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
	case f.maxLive <= 0:
		return usagef("--max-live must be positive")
	}
	for _, pid := range f.pids {
		if pid <= 0 {
			return usagef("%d is no process id", pid)
		}
	}
	if !slices.Contains([]probes.API{probes.APIDriver, probes.APIRuntime, probes.APIBoth}, probes.API(f.api)) {
		return usagef("unknown --api %q: use driver, runtime or both", f.api)
	}
	if !slices.Contains([]session.StackMode{session.StacksAuto, session.StacksUnwind, session.StacksFramePointer}, session.StackMode(f.stacks)) {
		return usagef("unknown --stacks %q: use auto, unwind or fp", f.stacks)
	}
	return f.leaks.check()
}

// trace runs one trace from start to written profile.
func trace(f *traceFlags) error {
	if err := f.check(); err != nil {
		return err
	}
	out, err := newOutput(f)
	if err != nil {
		return err
	}
	log := newLogger(f)
	oom, err := newOOMWriter(f, log)
	if err != nil {
		return err
	}

	user := watchSignals()
	var child *launch.Command
	pids := f.pids
	if len(f.command) > 0 {
		if child, err = launch.Hold(f.command); err != nil {
			return err
		}
		pids = []int{child.PID()}
	}
	opts := session.Options{
		PIDs: pids, All: f.all, Follow: !f.noFollow, API: probes.API(f.api), MaxLive: f.maxLive,
		Native: f.native, RequireCUDA: f.requireCUDA, Warn: log.warn, Held: child != nil,
		Residual: !f.noResidual, Stacks: session.StackMode(f.stacks), NoMemo: f.noMemo, VerifyStacks: f.verify,
		Version: version, CommandLine: f.commandLine,
	}
	if oom != nil {
		opts.OutOfMemory, opts.OutOfMemoryMax = oom.write, f.oomMax
	}
	s, err := session.Start(opts)
	if err != nil {
		if child != nil {
			child.Kill()
		}
		return err
	}
	defer s.Close()
	var exited chan error
	if child != nil {
		if err := child.Release(); err != nil {
			return err
		}
		exited = make(chan error, 1)
		go func() {
			code, err := child.Wait()
			if err == nil && code != 0 {
				err = exitError(code)
			}
			exited <- err
		}()
	}
	log.started(s, child == nil)
	if f.readyFile != "" {
		if err := os.WriteFile(f.readyFile, nil, 0o644); err != nil {
			return fmt.Errorf("say ready: %w", err)
		}
	}

	leaks := newLeakWatch(&f.leaks)
	ended, err := collect(f, s, out, leaks, user, log)
	if err := errors.Join(err, s.Stop()); err != nil {
		return err
	}
	snap := s.Snapshot(out.live() || leaks.live())
	if err := out.write(snap); err != nil {
		return err
	}
	log.summary(snap, out)
	to := os.Stdout
	if out.path == "-" {
		to = os.Stderr
	}
	width := columns(to)
	if err := leaks.finish(snap, to, width, width > 0 && os.Getenv("NO_COLOR") == ""); err != nil {
		return err
	}
	if child != nil {
		// Ctrl-C reaches the command by itself; SIGTERM came to this process.
		if ended == syscall.SIGTERM {
			_ = child.Signal(ended) // it may have ended
		}
		if err := <-exited; err != nil {
			return err
		}
	}
	if out.failed > 0 {
		return fmt.Errorf("%d numbered files could not be written", out.failed)
	}
	return nil
}

// collect waits for the end of the trace and writes numbered files meanwhile.
// It returns the signal that ended it, 0 if none did.
func collect(f *traceFlags, s *session.Session, out *output, leaks *leakWatch, user signals, log logger) (syscall.Signal, error) {
	var timeout, tick <-chan time.Time
	if f.duration > 0 {
		timeout = time.After(f.duration)
	}
	if f.interval > 0 {
		ticker := time.NewTicker(f.interval)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		select {
		case <-timeout:
			return 0, nil
		case <-s.Done():
			return 0, nil
		case err := <-s.Failed():
			return 0, err
		case sig := <-user.stop:
			return sig, nil
		case <-leaks.tick():
			leaks.observe(s.Snapshot(false))
			continue
		case <-tick:
		case <-user.now:
		}
		// A disk that is full now must not end the trace.
		if err := out.writeNumbered(s.Snapshot(out.live())); err != nil {
			out.failed++
			log.warn(err.Error())
		}
	}
}
