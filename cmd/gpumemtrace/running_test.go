package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// A failingTrace fails by itself, when it is stopped, or both.
type failingTrace struct {
	failed  chan error
	done    chan struct{}
	stopErr error
	calls   []string
}

func (f *failingTrace) Target() string        { return "pid 17 (python3)" }
func (f *failingTrace) Done() <-chan struct{} { return f.done }
func (f *failingTrace) Failed() <-chan error  { return f.failed }

func (f *failingTrace) Stop() error {
	f.calls = append(f.calls, "stop")
	return f.stopErr
}

func (f *failingTrace) Read(func(*state.State)) {}

func (f *failingTrace) View(w state.Want) *state.View { return f.Report(w) }

func (f *failingTrace) Report(w state.Want) *state.View {
	f.calls = append(f.calls, "snapshot")
	s := state.New()
	s.Apply(&record.Trace{APIs: []string{"", "cuMemAlloc_v2"}})
	s.Apply(&event.Event{Op: event.OpAlloc, Kind: event.KindDevice, API: 1, Proc: event.Process{PID: 17}, Time: 1, Addr: 4096, Size: 4096})
	return s.View(w)
}

// An endedJob has ended with a code.
type endedJob int

func (endedJob) Signal(os.Signal) error { return os.ErrProcessDone }
func (c endedJob) Wait() (int, error)   { return int(c), nil }

// What fails costs no profile: it is written first, and the failure is told
// after, also when the command has an exit code of its own to tell.
func TestFailureKeepsProfile(t *testing.T) {
	reader, stop := errors.New("the ring buffer broke"), errors.New("a probe stays")
	for _, c := range []struct {
		name          string
		reader, stop  error
		job           job
		unwritable    bool
		want, wantNot []error
	}{
		{name: "reader", reader: reader, want: []error{reader}},
		{name: "stop", stop: stop, want: []error{stop}},
		{name: "both", reader: reader, stop: stop, want: []error{reader, stop}},
		{name: "with a command", reader: reader, job: endedJob(7), want: []error{reader}, wantNot: []error{exitError(7)}},
		{name: "command alone", job: endedJob(7), want: []error{exitError(7)}},
		{name: "nor can it be written", stop: stop, unwritable: true, want: []error{stop, os.ErrNotExist}},
		{name: "nothing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &failingTrace{failed: make(chan error, 1), done: make(chan struct{}), stopErr: c.stop}
			if c.reader != nil {
				s.failed <- c.reader
			} else {
				close(s.done)
			}
			dir := t.TempDir()
			path := filepath.Join(dir, "x.folded")
			if c.unwritable {
				path = filepath.Join(dir, "no", "x.folded")
			}
			f := &traceFlags{outputFlags: outputFlags{quiet: true, output: path}}
			out := &output{path: path}
			out.format, _ = formats().ByExtension(path)
			r := running{flags: f, session: s, job: c.job, out: out, log: newLogger(&f.outputFlags),
				user: signals{stop: make(chan syscall.Signal), now: make(chan struct{})}}
			err := r.toTheEnd()
			if len(c.want) == 0 && err != nil {
				t.Error(err)
			}
			for _, want := range c.want {
				if !errors.Is(err, want) {
					t.Errorf("%v, want %v in it", err, want)
				}
			}
			for _, not := range c.wantNot {
				if errors.Is(err, not) {
					t.Errorf("%v, want no %v in it", err, not)
				}
			}
			if !slices.Equal(s.calls, []string{"stop", "snapshot"}) {
				t.Errorf("calls %q", s.calls)
			}
			if text, err := os.ReadFile(path); !c.unwritable && (err != nil || !strings.Contains(string(text), "cuMemAlloc_v2 4096")) {
				t.Errorf("profile %q, %v", text, err)
			}
		})
	}
}
