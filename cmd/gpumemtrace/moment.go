package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// momentHelp says in help texts what a moment may be.
const momentHelp = replay.MomentHelp

// A moment is one of a recording, a pflag.Value. The zero value is none.
type moment struct {
	text string
	in   func(replay.Span) (time.Duration, error) // after the trace began
}

func (m *moment) String() string { return m.text }

// Type names the value in help texts.
func (m *moment) Type() string { return "time" }

// Set parses a moment.
func (m *moment) Set(s string) error {
	in, err := replay.ParseMoment(s, time.Local)
	if err != nil {
		return err
	}
	said := false
	m.text, m.in = s, func(x replay.Span) (time.Duration, error) {
		at, err := in(x)
		switch {
		case err != nil:
			return at, err
		case at == x.Peak.Round(time.Millisecond): // as pages write it
			return x.Peak, nil
		case at >= 0:
			return at, nil
		}
		if !said {
			said = true
			later := ""
			if name, _, found := strings.Cut(s, "-"); found && name != "" && !strings.Contains(s, ":") {
				later = ". Give --at " + name + "-1s for a later one"
			}
			fmt.Fprintf(os.Stderr, "gpumemtrace: %s is %v before the trace began: what is shown is its beginning%s\n", s, (-at).Round(time.Millisecond), later)
		}
		return 0, nil
	}
	return nil
}

// given reports whether m was given.
func (m *moment) given() bool { return m.text != "" }

// flag returns the flag that gives m, with a space before it, "" if m is not given.
func (m *moment) flag(name string) string {
	if !m.given() {
		return ""
	}
	return " --" + name + " " + m.text
}

// at returns how long after the beginning of a recording m is, or other if m is not given.
func (m *moment) at(x replay.Span, other time.Duration) (time.Duration, error) {
	if !m.given() {
		return other, nil
	}
	return m.in(x)
}

// options returns how to play the recording at path up to m, by default to its end.
func (m *moment) options(path string) (replay.Options, error) {
	if !m.given() {
		return replay.Options{At: replay.End}, nil
	}
	x, end, err := measure(path)
	if err != nil {
		return replay.Options{}, err
	}
	at, err := m.in(x)
	if err != nil {
		return replay.Options{}, fmt.Errorf("%s: %w", path, err)
	}
	return replay.Options{At: at, Later: end}, nil
}

// measure returns the span of the recording at path, and the state at its end.
func measure(path string) (replay.Span, *state.State, error) {
	r, err := record.Open(path)
	if err != nil {
		return replay.Span{}, nil, err
	}
	defer r.Close()
	x, end, err := replay.Measure(r, replay.Options{})
	if err != nil {
		return replay.Span{}, nil, fmt.Errorf("read %s: %w", path, err)
	}
	return x, end, nil
}
