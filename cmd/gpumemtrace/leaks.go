package main

import (
	"io"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/gpumemtrace/gpumemtrace/internal/model/leak"
	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/output/export"
)

type leakFlags struct {
	on       bool
	interval time.Duration
}

func (f *leakFlags) add(s *pflag.FlagSet) {
	s.BoolVar(&f.on, "leaks", false, "at the end, also print the stacks whose memory grew through five intervals and is still held")
	s.DurationVar(&f.interval, "leak-interval", leak.DefaultInterval, "length of each interval")
}

// addForRecording adds the flags of a report about a recording.
func (f *leakFlags) addForRecording(s *pflag.FlagSet) {
	s.BoolVar(&f.on, "leaks", false, "show the stacks of a recording whose memory grew through five intervals and is still held")
	s.DurationVar(&f.interval, "leak-interval", 0, "length of each interval (default an eighth of the recording)")
}

// reportLeaks prints what leaks in a recording.
func reportLeaks(path string, at moment, f leakFlags, o export.Options) error {
	if f.interval == 0 {
		f.interval = leak.DefaultInterval
		span, _, err := measure(path)
		if err != nil {
			return err
		}
		to, err := at.at(span, span.End)
		if err != nil {
			return err
		}
		if n := to / 8; n >= minLeakInterval {
			f.interval = n.Round(time.Millisecond)
		}
	} else if err := f.check(); err != nil {
		return err
	}
	opts, err := at.options(path)
	if err != nil {
		return err
	}
	leaks := newLeakWatch(&f)
	opts.Moment = leaks.moment
	s, err := replay.Play(path, opts)
	if err != nil {
		return err
	}
	if leaks.observed > maxLeakIntervals {
		return usagef("%s has more than %d intervals of %v: give a longer --leak-interval", path, maxLeakIntervals, f.interval)
	}
	view := s.View(state.Want{Driver: true, Live: true})
	if err := leaks.finish(view, view.Snapshot(), os.Stdout, o); err != nil {
		return err
	}
	return export.Next(os.Stdout, o,
		export.Command{Args: "report " + path + " --steps", Answers: "What each training step allocates, and what grew"},
		export.Command{Args: "report " + path + " --by line --at end", Answers: "What each line of the program held at the end"})
}

// Limits of --leak-interval.
const (
	minLeakInterval = 10 * time.Millisecond
	maxLeakInterval = 24 * time.Hour
	// maxLeakIntervals bounds those of a recording: at the end of each, all call sites are looked at.
	maxLeakIntervals = 1 << 11
)

func (f *leakFlags) check() error {
	if f.interval < minLeakInterval || f.interval > maxLeakInterval {
		return usagef("--leak-interval must be between %v and %v", minLeakInterval, maxLeakInterval)
	}
	return nil
}

// A leakWatch looks for leaks while a trace runs. A nil one does nothing.
type leakWatch struct {
	detector *leak.Detector
	ticker   *time.Ticker
	interval time.Duration
	next     time.Time // end of the interval, of a recording
	observed int       // intervals of a recording
}

func newLeakWatch(f *leakFlags) *leakWatch {
	if !f.on {
		return nil
	}
	return &leakWatch{
		detector: leak.New(leak.Options{Interval: f.interval}),
		ticker:   time.NewTicker(f.interval),
		interval: f.interval,
	}
}

func (l *leakWatch) tick() <-chan time.Time {
	if l == nil {
		return nil
	}
	return l.ticker.C
}

// live reports whether finish needs live allocations.
func (l *leakWatch) live() bool { return l != nil }

func (l *leakWatch) observe(s *state.State) { l.detector.Observe(s.Time(), s.InUse) }

// moment observes a recording at the moments at which a trace would have observed.
func (l *leakWatch) moment(s *state.State) {
	if l == nil {
		return
	}
	if l.next.IsZero() {
		l.next = s.Start().Add(l.interval)
	}
	if now := s.Time(); !now.Before(l.next) && l.observed <= maxLeakIntervals {
		l.observe(s)
		l.observed++
		l.next = l.next.Add(now.Sub(l.next)/l.interval*l.interval + l.interval)
	}
}

// finish writes what leaks at the end of the trace.
func (l *leakWatch) finish(v *state.View, s *snapshot.Snapshot, w io.Writer, o export.Options) error {
	if l == nil {
		return nil
	}
	l.ticker.Stop()
	return export.Leaks(w, l.detector.Report(s, v.Sites), o)
}
