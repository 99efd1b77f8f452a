package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/source/launch"
	"github.com/gpumemtrace/gpumemtrace/internal/top"
)

const topExamples = `  sudo gpumemtrace top -a                  # every process that uses CUDA
  sudo gpumemtrace top -p 4711 --tensors
  sudo gpumemtrace top -- python train.py  # from the first call on
  gpumemtrace top run.gmt                  # a recording, with a time slider
  gpumemtrace top --agent https://node7:9844 --token-file token
  sudo gpumemtrace top -a --once           # one page of text
  sudo gpumemtrace top -a --json --interval 10s > memory.jsonl`

// topFlags are what top takes beside what a trace does.
type topFlags struct {
	traceFlags
	at    moment
	once  bool
	json  bool
	shown int
	remoteFlags
}

func newTop() *cobra.Command {
	var f topFlags
	c := &cobra.Command{
		Use:     "top {-p PID | -a | -- CMD ARGS... | RECORDING | --agent URL}",
		Short:   "Show in the terminal who holds how much now, and what grows, by call stack",
		Example: topExamples,
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() != 0 && len(args) > 1 {
				return usagef("give one recording, or a command after --")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f.commandLine = strings.Join(os.Args, " ")
			if f.url != "" {
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
	f.addTensors(s)
	f.addRecord(s)
	f.addLimits(s)
	f.addCapture(s)
	f.addReady(s)
	s.BoolVar(&f.force, "force", false, "replace an existing file")
	s.DurationVar(&f.interval, "interval", time.Second, "how often to look")
	s.Var(&f.at, "at", "the moment of a recording to begin at, as convert takes it; default its end")
	s.BoolVar(&f.once, "once", false, "print one page, of what changed in one interval, and end")
	s.BoolVar(&f.json, "json", false, "print JSON: one document each interval, or with --once one")
	f.remoteFlags.add(s)
	s.IntVarP(&f.shown, "top", "n", 20, "stacks that --once and --json show (negative for all)")
	s.SortFlags = false
	return c
}

// minInterval is the shortest time between two looks.
const minInterval = 100 * time.Millisecond

func (f *topFlags) check() error {
	switch {
	case f.interval < minInterval:
		return usagef("--interval must be at least %v", minInterval)
	case !f.once && !f.json && (columns(os.Stdout) == 0 || columns(os.Stdin) == 0):
		return usagef("top needs a terminal: elsewhere, give --once or --json")
	}
	return nil
}

// options are how the view behaves.
func (f *topFlags) options() top.Options {
	return top.Options{Interval: f.interval, Plain: os.Getenv("NO_COLOR") != ""}
}

// recording shows a recording.
func (f *topFlags) recording(path string) error {
	if err := f.check(); err != nil {
		return err
	}
	if len(f.pids) > 0 || f.all || f.record != "" {
		return usagef("a recording is shown by itself: leave out -p, -a and --record")
	}
	if file, err := os.Stat(path); err == nil {
		collectFor(file)
	}
	r, err := live.OpenRecording(path)
	if err != nil {
		return err
	}
	defer r.Close()
	opts := f.options()
	opts.At, _ = r.Span()
	if f.at.text != "" {
		if opts.At, err = r.At(f.at.after, f.at.time); err != nil {
			return err
		}
	}
	if !f.once && !f.json {
		ctx, _ := stopped(watchSignals())
		return top.Run(ctx, r, opts)
	}
	p, err := live.Once(r, opts.At, opts.Interval, nil)
	if err != nil {
		return err
	}
	return f.print(p)
}

// print writes one picture.
func (f *topFlags) print(p *live.Picture) error {
	w := bufio.NewWriter(os.Stdout)
	var err error
	if f.json {
		err = live.JSON(w, p, f.shown)
	} else {
		o := layout(os.Stdout)
		err = top.Text(w, p, f.shown, o.Width, o.Color)
	}
	if failed := w.Flush(); err == nil && failed != nil {
		err = fmt.Errorf("write to stdout: %w", failed)
	}
	return err
}

// live shows a trace as it goes on.
func (f *topFlags) live() error {
	if err := f.traceFlags.check(); err != nil {
		return err
	}
	if err := f.check(); err != nil {
		return err
	}
	if f.at.text != "" {
		return usagef("--at is for a recording")
	}
	if err := f.checkRecording(); err != nil {
		return err
	}
	ready, err := newReadyFile(&f.traceFlags)
	if err != nil {
		return err
	}
	f.gpuMemory = true
	screen := !f.once && !f.json
	log := newLogger(&f.traceFlags)
	user := watchSignals()
	streams := launch.Streams{In: os.Stdin, Out: os.Stderr, Err: os.Stderr}
	var said *spool
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
	s, child, err := f.start(log, nil, ready, streams)
	if err != nil {
		return err
	}
	said.begin()
	defer f.closeSession(s, newLogger(&f.traceFlags))
	exited := make(chan error, 1)
	if child != nil {
		if err := child.Release(); err != nil {
			return err
		}
		go func() {
			code, err := child.Wait()
			if err == nil && code != 0 {
				err = exitError(code)
			}
			exited <- err
		}()
	}
	ctx, ended := stopped(user)
	err = f.watch(ctx, live.NewTraceSource(s), s.Done(), screen)
	said.release()
	if child != nil {
		select {
		case sig := <-ended:
			if sig != syscall.SIGINT { // which reached the command by itself
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

// stopped returns a context that ends when the user says so, and by which signal.
func stopped(user signals) (context.Context, <-chan syscall.Signal) {
	ctx, cancel := context.WithCancel(context.Background())
	by := make(chan syscall.Signal, 1)
	go func() {
		by <- <-user.stop
		cancel()
	}()
	return ctx, by
}

// watch shows a source until the user or its end ends that.
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
