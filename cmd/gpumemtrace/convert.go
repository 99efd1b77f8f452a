package main

import (
	"errors"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/output/perfetto"
	"github.com/gpumemtrace/gpumemtrace/internal/output/timeline"
)

const convertExamples = `  gpumemtrace convert run.gmt -o end.pb.gz              # what the trace showed at its end
  gpumemtrace convert run.gmt --at 12m30s -o then.pb.gz # and 12.5 minutes after it began
  gpumemtrace convert run.gmt --format table
  gpumemtrace convert run.gmt -o run.perfetto-trace     # all of it over time, for ui.perfetto.dev
  gpumemtrace convert run.gmt run.html                  # likewise, one page for any browser
  gpumemtrace convert run.gmt -o run.pickle             # for https://pytorch.org/memory_viz
  gpumemtrace convert run.gmt --leaks -o end.pb.gz`

func newConvert() *cobra.Command {
	var f traceFlags
	var at moment
	var slices bool
	c := &cobra.Command{
		Use:     "convert RECORDING [OUTPUT]",
		Short:   "Make of a recording what a trace would have written, at any of its moments",
		Example: convertExamples,
		Args:    oneOrTwo,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 2 {
				if f.output != "" {
					return usagef("name the output once: %s, or -o %s", args[1], f.output)
				}
				f.output = args[1]
			}
			if err := f.leaks.check(); err != nil {
				return err
			}
			if f.traceMax < 0 {
				return usagef("--trace-max cannot be negative")
			}
			return convert(args[0], &f, at, slices)
		},
	}
	addOutputFlags(c.Flags(), &f)
	c.Flags().Var(&at, "at", "the moment to show: how long after the trace began (90s), or a time (2006-01-02T15:04:05Z); default its end")
	c.Flags().StringVar(&f.oomDir, "oom-dir", "", "write the out-of-memory reports here that the trace made until then")
	c.Flags().BoolVar(&slices, "slices", false, "in a perfetto trace, also the life of each allocation")
	f.leaks.add(c.Flags())
	return c
}

// oneOrTwo are a recording, and what to write.
func oneOrTwo(_ *cobra.Command, args []string) error {
	if len(args) != 1 && len(args) != 2 {
		return usagef("give one recording, and at most one output, not %d", len(args))
	}
	return nil
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

// sameFile tells whether two paths lead to one file that is there.
func sameFile(a, b string) bool {
	x, err := os.Stat(a)
	y, failed := os.Stat(b)
	return err == nil && failed == nil && os.SameFile(x, y)
}

// convert writes what a recording shows at a moment, or up to it.
func convert(path string, f *traceFlags, at moment, slices bool) error {
	if file, err := os.Stat(path); err == nil {
		collectFor(file)
	}
	if sameFile(path, f.output) {
		return usagef("%s is the recording itself: name another output", f.output)
	}
	out, err := newOutput(f)
	if err != nil {
		return err
	}
	if slices && out.format.Name != "perfetto" {
		return usagef("--slices is for a perfetto trace: give -o FILE.perfetto-trace")
	}
	log := newLogger(f)
	oom, err := newOOMWriter(f, log)
	if err != nil {
		return err
	}
	opts := at.options()
	bar := newProgress(os.Stderr, !f.quiet, "converting "+path)
	opts.Progress = bar.show
	if report := oom.reports(f); report != nil {
		opts.OutOfMemory = func(in *state.Incident) {
			bar.clear()
			report(in)
		}
	}
	opts.Layout, opts.Remember = out.format.Layout, f.traceMax
	leaks := newLeakWatch(&f.leaks)
	opts.Moment = leaks.moment
	var played *state.State
	var lost []loss.Counter
	if out.format.Series {
		err = out.put(func(w io.Writer) (err error) {
			if out.format.Name == "timeline" {
				played, lost, err = timeline.Write(w, path, timeline.Options{Play: opts, Native: f.native})
			} else {
				played, lost, err = perfetto.Write(w, path, perfetto.Options{Play: opts, Slices: slices, Native: f.native})
			}
			return err
		})
	} else {
		played, err = replay.Play(path, opts)
	}
	bar.clear()
	if err != nil {
		return err
	}
	view := played.View(out.want(f, leaks.live()))
	snap := view.Snapshot()
	snap.Loss = append(snap.Loss, lost...)
	if !out.format.Series {
		if err := out.write(snap); err != nil {
			return err
		}
	}
	log.summary(snap, out)
	to := os.Stdout
	if out.path == "-" {
		to = os.Stderr
	}
	return leaks.finish(view, snap, to, layout(to))
}
