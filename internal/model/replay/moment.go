package replay

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// MomentHelp says what ParseMoment takes.
const MomentHelp = "90s (after the trace began), -30s (before its end), 23:14 or 2006-01-02T15:04:05Z (by the clock), peak, peak-1s, tensor-peak (when tensors held most), oom (out of memory), oom-10s, or end"

// Layouts of times of the clock, in a zone that is given where they have none.
var (
	dateLayouts  = []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04", "2006-01-02 15:04"}
	clockLayouts = []string{"15:04:05", "15:04"}
)

// errNoFailure means that a recording has no moment of its own for a failure.
var errNoFailure = errors.New("no request failed because memory ran out: the recording has no moment called oom")

// errNoTensors means that a recording does not show when tensors held most.
var errNoTensors = errors.New("it shows no tensors, so no moment at which they held most: record with --tensors")

// ParseMoment returns the moment that s is in a recording, negative for one before its beginning, and an
// error where the recording has none. Times of the clock without a zone are in this one.
func ParseMoment(s string, zone *time.Location) (func(Span) (time.Duration, error), error) {
	at, err := parseMoment(s, zone)
	if err != nil {
		return nil, err
	}
	return func(x Span) (time.Duration, error) {
		switch {
		case strings.HasPrefix(s, outOfMemory) && x.OutOfMemory < 0:
			return 0, errNoFailure
		case strings.HasPrefix(s, tensorPeak) && x.Tensors == 0:
			return 0, errNoTensors
		}
		return at(x), nil
	}, nil
}

// Names of Span.OutOfMemory and Span.Most.
const (
	outOfMemory = "oom"
	tensorPeak  = "tensor-peak"
)

func parseMoment(s string, zone *time.Location) (func(Span) time.Duration, error) {
	if _, err := strconv.ParseFloat(s, 64); err == nil && s != "0" && strings.ContainsAny(s, "0123456789") {
		return nil, fmt.Errorf("%s of what? Give a unit, as in %[1]ss or %[1]sm", s)
	}
	for name, of := range map[string]func(Span) time.Duration{
		"peak": func(x Span) time.Duration { return x.Peak }, "end": func(x Span) time.Duration { return x.End },
		outOfMemory: func(x Span) time.Duration { return x.OutOfMemory }, tensorPeak: func(x Span) time.Duration { return x.Most },
	} {
		rest, is := strings.CutPrefix(s, name)
		if is && rest == "" {
			return of, nil
		}
		if d, err := time.ParseDuration(rest); is && err == nil && strings.ContainsAny(rest[:1], "+-") {
			return func(x Span) time.Duration { return of(x) + d }, nil
		}
	}
	if d, err := time.ParseDuration(s); err == nil {
		return func(x Span) time.Duration {
			if strings.HasPrefix(s, "-") {
				return x.End + d
			}
			return d
		}, nil
	}
	for _, layout := range dateLayouts {
		if t, err := time.ParseInLocation(layout, s, zone); err == nil {
			return func(x Span) time.Duration { return t.Sub(x.Start) }, nil
		}
	}
	for _, layout := range clockLayouts {
		if t, err := time.Parse(layout, s); err == nil {
			return func(x Span) time.Duration { return nextClock(x.Start.In(zone), t).Sub(x.Start) }, nil
		}
	}
	return nil, errors.New("give " + MomentHelp)
}

// nextClock returns the first time from start on at which a clock of its zone shows
// the hour, minute and second of clock.
func nextClock(start, clock time.Time) time.Time {
	for day := 0; ; day++ {
		t := time.Date(start.Year(), start.Month(), start.Day()+day, clock.Hour(), clock.Minute(), clock.Second(), clock.Nanosecond(), start.Location())
		if !t.Before(start) || day > 1 {
			return t
		}
	}
}
