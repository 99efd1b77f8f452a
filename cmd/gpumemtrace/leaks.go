package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/leak"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
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
	s.DurationVar(&f.interval, "leak-interval", leak.DefaultInterval, "with --leaks: length of an interval")
}

// addForRecording adds the flags of a report about a recording.
func (f *leakFlags) addForRecording(s *pflag.FlagSet) {
	s.BoolVar(&f.on, "leaks", false, "show the stacks of a recording whose memory grew through five intervals and is still held")
	s.DurationVar(&f.interval, "leak-interval", 0, "with --leaks: length of an interval (default a twelfth of the training steps, or else of the time in which memory was taken)")
}

// reportLeaks prints what leaks in a recording up to at. Without at it looks no further than to where memory
// grew last: what a program frees as it ends would hide a leak. First, each interval has as many training
// steps. If that finds nothing, or there are too few steps, the whole time is cut into equal intervals.
func reportLeaks(path string, at moment, f leakFlags, o export.Options) error {
	span, end, err := measure(path)
	if err != nil {
		return err
	}
	to, err := at.at(span, span.Grew)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	later := end.View(state.Want{Driver: true, Live: true, Steps: true, Holders: true})
	whole := passage{from: span.First, to: to, interval: f.interval, until: "when memory grew last. Another end: --at"}
	if at.given() {
		whole.until = "--at " + at.text
	}
	passages := []passage{whole}
	if f.interval == 0 {
		passages = append(trained(later.Snapshot(), to), whole.divided(0))
	} else if err := f.check(); err != nil {
		return err
	}
	var s *state.State
	var snap *snapshot.Snapshot
	var found *leak.Report
	for i := 0; i < len(passages) && (found == nil || len(found.Stacks) == 0); i++ {
		whole = passages[i]
		leaks := leakWatch{detector: leak.New(leak.Options{Interval: whole.interval, Steps: whole.steps}), interval: whole.interval, next: span.Start.Add(whole.from + whole.interval)}
		if s, err = replay.Play(path, replay.Options{At: whole.to, Later: end, Moment: leaks.moment, Before: leaks.before}); err != nil {
			return err
		}
		if leaks.observed > maxLeakIntervals {
			return usagef("%s has more than %d intervals of %v: give a longer --leak-interval", path, maxLeakIntervals, whole.interval)
		}
		view := s.View(state.Want{Driver: true, Live: true, Steps: true, Holders: true})
		snap = view.Snapshot().ByRank()
		found = leaks.detector.Report(snap, view.Sites)
	}
	ended := later.Snapshot()
	found.Later(ended, later.Sites)
	if err := export.LeaksOfRecording(os.Stdout, found, snap, ended, whole.text(), o); err != nil {
		return err
	}
	var next []export.Command
	if len(snap.Heaps) > 0 {
		next = append(next, export.Command{Args: "report " + path + " --by holder,line --at " + whole.to.String(), Answers: "Which object holds what each line made"})
	}
	if s.SawTensors() {
		next = append(next, export.Command{Args: "report " + path + " --steps", Answers: "What each training step allocates, and what grew"})
	}
	return export.Next(os.Stdout, o, append(next, export.Command{Args: "report " + path + " --by line --at end", Answers: "What each line of the program held at the end"})...)
}

// A passage is a part of a recording in which leaks are looked for, as times after its beginning.
type passage struct {
	from, to, interval time.Duration
	steps              int    // training steps in an interval, about; 0 if it does not follow from them
	until              string // what to is
}

// divided returns p in equal intervals, each of so many steps.
func (p passage) divided(steps int) passage {
	p.interval, p.steps = leak.DefaultInterval, steps
	if n := (p.to - p.from) / leakIntervals; n >= minLeakInterval {
		p.interval = n.Round(time.Millisecond)
	}
	return p
}

// text says what p is.
func (p *passage) text() string {
	begin := "GPU memory was first held"
	if p.steps > 0 {
		begin = "the first of these training steps began"
	}
	return fmt.Sprintf("from %v, when %s, to %v, %s", p.from.Round(time.Millisecond), begin, p.to.Round(time.Millisecond), p.until)
}

// trained returns the time of the training steps up to a moment, of the process that has most of them.
// It is none if they are fewer than intervals are looked at.
func trained(end *snapshot.Snapshot, to time.Duration) (out []passage) {
	most := leakIntervals - 1
	for i := range end.Steps {
		after := func(t time.Time) time.Duration { return t.Sub(end.Meta.Start) }
		last := slices.DeleteFunc(slices.Clone(end.Steps[i].Last), func(s snapshot.Step) bool { return after(s.Begin)+s.Took > to })
		if n := len(last); n > most {
			most = n
			p := passage{from: after(last[0].Begin), to: after(last[n-1].Begin) + last[n-1].Took, until: "when the last one ended"}
			if p.to-p.from >= leakIntervals*minLeakInterval {
				out = []passage{p.divided(n / leakIntervals)}
			}
		}
	}
	return out
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
func (l *leakWatch) moment(s *state.State) { l.reach(s, s.Time()) }

// before observes a recording before the first event of the next interval.
func (l *leakWatch) before(s *state.State, r record.Record) {
	if e, is := r.(*event.Event); is {
		l.reach(s, s.Wall(e.Time))
	}
}

// reach observes a recording if the interval ended before now.
func (l *leakWatch) reach(s *state.State, now time.Time) {
	if !now.Before(l.next) && l.observed <= maxLeakIntervals {
		l.detector.Observe(now, s.InUse)
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
	return export.Leaks(w, l.detector.Report(s.ByRank(), v.Sites), o)
}
