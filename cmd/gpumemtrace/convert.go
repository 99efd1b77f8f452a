package main

import (
	"errors"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumemtrace/gpumemtrace/internal/replay"
)

const convertExamples = `  gpumemtrace convert run.gmt -o end.pb.gz              # what the trace showed at its end
  gpumemtrace convert run.gmt --at 12m30s -o then.pb.gz # and 12.5 minutes after it began
  gpumemtrace convert run.gmt --format table
  gpumemtrace convert run.gmt --leaks -o end.pb.gz`

func newConvert() *cobra.Command {
	var f traceFlags
	var at moment
	c := &cobra.Command{
		Use:     "convert RECORDING",
		Short:   "Make of a recording what a trace would have written, at any of its moments",
		Example: convertExamples,
		Args:    exactly(1, "one recording"),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := f.leaks.check(); err != nil {
				return err
			}
			return convert(args[0], &f, at)
		},
	}
	addOutputFlags(c.Flags(), &f)
	c.Flags().Var(&at, "at", "the moment to show: how long after the trace began (90s), or a time (2006-01-02T15:04:05Z); default its end")
	c.Flags().StringVar(&f.oomDir, "oom-dir", "", "write the out-of-memory reports here that the trace made until then")
	f.leaks.add(c.Flags())
	return c
}

// A moment is one of a recording: a pflag.Value. The zero value is its end.
type moment struct {
	text  string
	after time.Duration
	time  time.Time
}

func (m *moment) String() string { return m.text }

// Type names the value in help texts.
func (m *moment) Type() string { return "time" }

// Set parses a duration, or a time as of RFC 3339.
func (m *moment) Set(s string) (err error) {
	m.text = s
	if m.after, err = time.ParseDuration(s); err == nil {
		if m.after < 0 {
			return errors.New("a trace has no moment before its beginning")
		}
		return nil
	}
	if m.time, err = time.Parse(time.RFC3339Nano, s); err != nil {
		return errors.New("give a duration such as 90s, or a time such as 2006-01-02T15:04:05Z")
	}
	return nil
}

// options are how to play up to m.
func (m *moment) options() replay.Options {
	if m.text == "" {
		return replay.Options{At: replay.End}
	}
	return replay.Options{At: m.after, Time: m.time}
}

// convert writes what a recording shows at a moment.
func convert(path string, f *traceFlags, at moment) error {
	out, err := newOutput(f)
	if err != nil {
		return err
	}
	log := newLogger(f)
	oom, err := newOOMWriter(f, log)
	if err != nil {
		return err
	}
	opts := at.options()
	opts.OutOfMemory = oom.reports(f)
	leaks := newLeakWatch(&f.leaks)
	opts.Moment = leaks.moment
	played, err := replay.Play(path, opts)
	if err != nil {
		return err
	}
	view := played.View(f.want(out.live() || leaks.live()))
	snap := view.Snapshot()
	if err := out.write(snap); err != nil {
		return err
	}
	log.summary(snap, out)
	to := os.Stdout
	if out.path == "-" {
		to = os.Stderr
	}
	return leaks.finish(view, snap, to, layout(to))
}
