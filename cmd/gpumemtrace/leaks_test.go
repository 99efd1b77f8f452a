package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/output/export"
)

func parseLeakFlags(t *testing.T, args ...string) *leakFlags {
	t.Helper()
	var f leakFlags
	s := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.add(s)
	if err := s.Parse(args); err != nil {
		t.Fatal(err)
	}
	return &f
}

func TestLeakFlags(t *testing.T) {
	for args, ok := range map[string]bool{
		"":                          true,
		"--leaks":                   true,
		"--leaks --leak-interval=0": false,
		"--leak-interval=-1s":       false,
		"--leak-interval=10000h":    false,
		"--leak-interval=1h":        true,
	} {
		err := parseLeakFlags(t, strings.Fields(args)...).check()
		if (err == nil) != ok || (err != nil && !errors.As(err, new(usageError))) {
			t.Errorf("%q: %v, want ok %v or a usage error", args, err, ok)
		}
	}
}

func TestLeakWatch(t *testing.T) {
	var b bytes.Buffer
	none := newLeakWatch(parseLeakFlags(t))
	if none.tick() != nil || none.live() {
		t.Error("a trace without --leaks observes, or asks for live allocations")
	}
	if err := none.finish(nil, nil, &b, export.Options{}); err != nil || b.Len() > 0 {
		t.Errorf("a trace without --leaks wrote %q, %v", &b, err)
	}

	l := newLeakWatch(parseLeakFlags(t, "--leaks", "--leak-interval=10ms"))
	s := state.New()
	begin := time.Now()
	s.Apply(&record.Trace{Target: "pid 1 (a)", Start: begin, Boot: begin})
	for i := range uint64(7) {
		<-l.tick()
		at := 1 + i*10_000_000
		s.Apply(&event.Event{Op: event.OpAlloc, Kind: event.KindDevice, Proc: event.Process{PID: 1}, Time: at, Addr: at, Size: 1 << 20})
		s.Apply(&record.Moment{Time: at + 9_999_999})
		l.observe(s)
	}
	if !l.live() {
		t.Error("--leaks does not ask for live allocations")
	}
	v := s.View(state.Want{Live: true})
	if err := l.finish(v, v.Snapshot(), &b, export.Options{}); err != nil {
		t.Fatal(err)
	}
	if want := "1 stack of pid 1 (a) leaked in 7 intervals of 10ms"; !strings.HasPrefix(b.String(), want) {
		t.Errorf("wrote:\n%s\nwant it to begin with %q", &b, want)
	}
}

// The leak of a program is found that took long to begin, and that freed all of it as it ended; one of a
// training that was short beside all else, in intervals of its steps; and what a container gathered in no
// step at all. What a program filled in its first steps is no leak.
func TestLeaksByDefault(t *testing.T) {
	for name, want := range map[string][]string{
		"holders":                {"1 stack of pid 470 (python3) leaked in 12 intervals of about 1 training step", "from 15.467s, when the first of these", "Most of it was freed before the end"},
		"allocator/bert":         {"No stack of pid 662 (python3) is seen to leak\n"},
		"findings/growth":        {"What is wrong\n  `growth() in", "1 stack of pid 686 (python3) leaked in 12 intervals of about 16 training steps", "local outputs` (list of 200 items): 792 MiB in 198 objects"},
		"findings/gathered":      {"What is wrong\n  `gathered() in", "No stack"},
		"findings/healthy_plain": {"No stack of pid 5867 (python3) is seen to leak\n"},
	} {
		out := command(t, "report", mustAbs(t, recordings+name+".gmt"), "--leaks").start().ends(exitDone).stdout.String()
		for _, want := range want {
			if !strings.Contains(strings.ReplaceAll(out, "\n    ", " "), want) {
				t.Errorf("%s: %q is not in\n%s", name, want, out)
			}
		}
		if strings.Contains(name, "healthy") && strings.Contains(out, "What is wrong") {
			t.Errorf("%s:\n%s", name, out)
		}
	}
}

// Of a recording the intervals are as long as the trace's own, whose ticks do not
// wait for a moment that comes late.
func TestLeakWatchOfARecording(t *testing.T) {
	l := newLeakWatch(parseLeakFlags(t, "--leaks", "--leak-interval=100ms"))
	s := state.New()
	begin := time.Unix(1_700_000_000, 0)
	l.next = begin.Add(l.interval)
	s.Apply(&record.Trace{Start: begin, Boot: begin})
	step := 70 * time.Millisecond
	const n = 100
	for i := range n {
		s.Apply(&record.Moment{Time: uint64(time.Duration(i+1) * step)})
		l.moment(s)
	}
	r := l.detector.Report(s.View(state.Want{Live: true}).Snapshot(), func(func(ledger.SiteKey) bool) {})
	if want := int(n * step / (100 * time.Millisecond)); r.Intervals != want {
		t.Errorf("%d intervals in %v, want %d", r.Intervals, n*step, want)
	}
}
