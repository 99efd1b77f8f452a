package main

import (
	"fmt"
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
	s.DurationVar(&f.interval, "leak-interval", 0, "length of each interval (default a twelfth of the time in which memory was taken)")
}

// reportLeaks prints what leaks in a recording: in the time from the first memory on to at, or else to
// where memory grew last. What a program does before and after that would hide a leak.
func reportLeaks(path string, at moment, f leakFlags, o export.Options) error {
	span, end, err := measure(path)
	if err != nil {
		return err
	}
	to, err := at.at(span, span.Grew)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if f.interval == 0 {
		f.interval = leak.DefaultInterval
		if n := (to - span.First) / leakIntervals; n >= minLeakInterval {
			f.interval = n.Round(time.Millisecond)
		}
	} else if err := f.check(); err != nil {
		return err
	}
	opts := replay.Options{At: to, Later: end}
	leaks := newLeakWatch(&f)
	leaks.later = end.View(state.Want{})
	leaks.next = span.Start.Add(span.First + f.interval)
	opts.Moment = leaks.moment
	s, err := replay.Play(path, opts)
	if err != nil {
		return err
	}
	if leaks.observed > maxLeakIntervals {
		return usagef("%s has more than %d intervals of %v: give a longer --leak-interval", path, maxLeakIntervals, f.interval)
	}
	until := "when memory grew last. Another end: --at"
	if at.given() {
		until = "--at " + at.text
	}
	if _, err := fmt.Printf("From %v, when GPU memory was first held, to %v, %s.\n", span.First.Round(time.Millisecond), to.Round(time.Millisecond), until); err != nil {
		return err
	}
	view := s.View(state.Want{Driver: true, Live: true, Holders: true})
	snap := view.Snapshot()
	if err := leaks.finish(view, snap, os.Stdout, o); err != nil {
		return err
	}
	var next []export.Command
	if len(snap.Heaps) > 0 {
		next = append(next, export.Command{Args: "report " + path + " --by holder,line --at " + to.String(), Answers: "Which object holds what each line made"})
	}
	if s.SawTensors() {
		next = append(next, export.Command{Args: "report " + path + " --steps", Answers: "What each training step allocates, and what grew"})
	}
	return export.Next(os.Stdout, o, append(next, export.Command{Args: "report " + path + " --by line --at end", Answers: "What each line of the program held at the end"})...)
}

// leakIntervals is how many intervals a recording has by default. In runs of a few seconds the cache of
// PyTorch, which fills in their first half, leaked with 16.
const leakIntervals = 12

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
	next     time.Time   // end of the interval, of a recording
	observed int         // intervals of a recording
	later    *state.View // its end
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
	r := l.detector.Report(s, v.Sites)
	if l.later != nil {
		r.FreedBy(l.later.Snapshot(), l.later.Sites)
	}
	return export.Leaks(w, r, o)
}
