package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/top"
)

// viewFlags are those of top that say what it shows, and how.
type viewFlags struct {
	interval time.Duration
	at       moment
	once     bool
	json     bool
	shown    int
}

func (f *viewFlags) add(s *pflag.FlagSet) {
	s.DurationVar(&f.interval, "interval", time.Second, "time from one refresh to the next")
	s.Var(&f.at, "at", "the moment of a recording to begin at: "+momentHelp+"; the default is the peak")
	s.BoolVar(&f.once, "once", false, "print one page about one interval, and exit")
	s.BoolVar(&f.json, "json", false, "print JSON: one document for each interval, or a single one with --once")
	s.IntVarP(&f.shown, "top", "n", 20, "stacks that --once and --json show (negative for all)")
}

// minInterval is the shortest time between two refreshes.
const minInterval = 100 * time.Millisecond

func (f *viewFlags) check(recording bool) error {
	switch {
	case f.at.given() && !recording:
		return usagef("--at is for a recording")
	case f.interval < minInterval:
		return usagef("--interval must be at least %v", minInterval)
	case !f.once && !f.json && (columns(os.Stdout) == 0 || columns(os.Stdin) == 0):
		return usagef("top needs a terminal: elsewhere, give --once or --json")
	}
	return nil
}

// options are how the view behaves.
func (f *viewFlags) options() top.Options {
	return top.Options{Interval: f.interval, Plain: os.Getenv("NO_COLOR") != ""}
}

// show shows a recording.
func (f *viewFlags) show(path string) error {
	if file, err := os.Stat(path); err == nil {
		collectFor(file)
	}
	r, err := live.OpenRecording(path)
	if err != nil {
		return err
	}
	defer r.Close()
	opts := f.options()
	span := r.Measured()
	at, err := f.at.at(span, span.Peak)
	if err != nil {
		return err
	}
	if opts.At, err = r.At(at); err != nil {
		return err
	}
	if !f.once && !f.json {
		ctx, _ := stopped(watchSignals())
		return top.Run(ctx, r, opts)
	}
	p, err := live.Once(r, opts.At, opts.Interval, nil)
	if err != nil {
		return err
	}
	p.Meta.Moment = span.Says(at)
	return f.print(p)
}

// print writes one status.
func (f *viewFlags) print(p *live.Status) error {
	w := bufio.NewWriter(os.Stdout)
	var err error
	if f.json {
		err = p.Document(f.shown).Write(w)
	} else {
		o := layout(os.Stdout)
		err = top.Text(w, p, f.shown, o.Width, o.Color)
	}
	if failed := w.Flush(); err == nil && failed != nil {
		err = fmt.Errorf("write to stdout: %w", failed)
	}
	return err
}

// stopped returns a context that ends when a signal of the user arrives, and a channel that
// receives that signal.
func stopped(user signals) (context.Context, <-chan syscall.Signal) {
	ctx, cancel := context.WithCancel(context.Background())
	by := make(chan syscall.Signal, 1)
	go func() {
		by <- <-user.stop
		cancel()
	}()
	return ctx, by
}
