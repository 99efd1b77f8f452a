//go:build linux

package main

import (
	"context"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/settings"
	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/source/launch"
	"github.com/gpumemtrace/gpumemtrace/internal/top"
)

const topExamples = `  sudo gpumemtrace top -a                  # every process that uses CUDA
  sudo gpumemtrace top -p 4711 --tensors
  sudo gpumemtrace top -- python train.py  # from the first call on
  gpumemtrace top run.gmt                  # a recording, with a time slider
  sudo gpumemtrace top --agent /run/gpumemtrace/agent.sock
  sudo gpumemtrace top -a --once           # one page of text
  sudo gpumemtrace top -a --json --interval 10s > memory.jsonl`

// topFlags are the flags of a trace and those that only top has.
type topFlags struct {
	traceFlags
	viewFlags
	remoteFlags
}

func newTop() *cobra.Command {
	f := topFlags{traceFlags: traceFlags{Trace: settings.NewTrace()}}
	c := &cobra.Command{
		Use:     "top {-p PID | -a | -- CMD ARGS... | RECORDING | --agent URL}",
		Short:   "Show live in the terminal who holds how much memory, and what grows, by call stack",
		Example: topExamples,
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() != 0 && len(args) > 1 {
				return usagef("give one recording, or a command after --")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f.commandLine = strings.Join(os.Args, " ")
			if f.address != "" {
				return f.remote(args)
			}
			if cmd.ArgsLenAtDash() == 0 || len(args) == 0 {
				f.command = args
				return f.live()
			}
			return f.recording(args[0])
		},
	}
	s := c.Flags()
	f.addTarget(s)
	f.addRecord(s)
	f.addSettings(s, "tensors", "tensors-window", "tensors-every", "max-live", "record-max", "api", "stacks", "no-cache")
	f.addReady(s)
	s.BoolVar(&f.force, "force", false, "replace an existing file")
	f.viewFlags.add(s)
	f.remoteFlags.add(s)
	s.SortFlags = false
	return c
}

// recording shows a recording.
func (f *topFlags) recording(path string) error {
	if err := f.viewFlags.check(true); err != nil {
		return err
	}
	if len(f.pids) > 0 || f.all || f.record != "" {
		return usagef("a recording cannot be combined with -p, -a or --record")
	}
	return f.show(path)
}

// live shows a trace as it goes on.
func (f *topFlags) live() error {
	if err := f.traceFlags.check(); err != nil {
		return err
	}
	if err := f.viewFlags.check(false); err != nil {
		return err
	}
	f.gpuMemory = true
	screen := !f.once && !f.json
	log := newLogger(&f.outputFlags)
	user := watchSignals()
	streams := launch.Streams{In: os.Stdin, Out: os.Stderr, Err: os.Stderr}
	var said *spool
	var err error
	if screen {
		log.quiet = true // the view shows notes
		if len(f.command) > 0 {
			if said, err = newSpool(); err != nil {
				return err
			}
			defer said.close()
			streams = launch.Streams{Out: said.in, Err: said.in}
		}
	}
	s, child, err := f.start(log, nil, streams)
	if err != nil {
		return err
	}
	said.begin()
	defer f.closeSession(s, newLogger(&f.outputFlags))
	var exited <-chan error
	if child != nil {
		if err := child.Release(); err != nil {
			return err
		}
		exited = ending(child)
	}
	ctx, ended := stopped(user)
	err = f.watch(ctx, live.NewTraceSource(s), s.Done(), screen)
	said.release()
	if child != nil {
		select {
		case sig := <-ended:
			if sig != syscall.SIGINT { // the terminal sent SIGINT to the command too
				_ = child.Signal(sig) // it may have ended
			}
		default:
		}
		code := <-exited
		said.drain()
		if err == nil {
			err = code
		}
	}
	return err
}

// watch shows a source until the user stops it or the source ends.
func (f *topFlags) watch(ctx context.Context, source live.Source, done <-chan struct{}, screen bool) error {
	opts := f.options()
	if screen {
		return top.Run(ctx, source, opts)
	}
	wait := func(d time.Duration) bool {
		select {
		case <-time.After(d):
			return true
		case <-done:
			return true
		case <-ctx.Done():
			return false
		}
	}
	if f.once {
		p, err := live.Once(source, opts.At, opts.Interval, wait)
		if err != nil {
			return err
		}
		return f.print(p)
	}
	return live.Each(source, opts.Interval, wait, f.print)
}
