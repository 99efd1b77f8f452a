package main

import (
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
)

// What a person may type for a moment, and which one it is.
func TestMoment(t *testing.T) {
	zone := time.Local
	time.Local = time.FixedZone("X", 2*60*60)
	defer func() { time.Local = zone }()
	span := replay.Span{Start: time.Date(2026, 11, 21, 21, 30, 5, 0, time.UTC), End: 3 * time.Hour, Peak: 8412345678, OutOfMemory: 20e9} // 23:30:05 here
	for text, want := range map[string]time.Duration{
		"90s":                       90 * time.Second,
		"8.412345678s":              8412345678,
		"0":                         0,
		"-30s":                      3*time.Hour - 30*time.Second,
		"peak":                      8412345678,
		"end":                       3 * time.Hour,
		"peak-1s":                   7412345678,
		"peak+1ms":                  8413345678,
		"end-1h":                    2 * time.Hour,
		"23:31":                     55 * time.Second,
		"23:30:06":                  time.Second,
		"23:30":                     24*time.Hour - 5*time.Second, // the next one
		"00:30":                     time.Hour - 5*time.Second,
		"2026-11-21 23:31":          55 * time.Second,
		"2026-11-21T23:31:00.5":     55500 * time.Millisecond,
		"2026-11-21T21:31:00Z":      55 * time.Second,
		"2026-11-21T21:31:00+00:00": 55 * time.Second,
		"2026-11-21 23:00":          0, // before it
		"peak-1h":                   0,
		"oom":                       20 * time.Second,
		"oom-10s":                   10 * time.Second,
	} {
		var m moment
		if err := m.Set(text); err != nil {
			t.Errorf("%s: %v", text, err)
		} else if got, err := m.at(span, 0); err != nil || got != want {
			t.Errorf("%s is %v after the beginning (%v), want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "noon", "25:00", "10", "peak1s", "peaks", "2026-13-01 10:00"} {
		if err := new(moment).Set(text); err == nil {
			t.Errorf("%q is a moment", text)
		}
	}
	if err := new(moment).Set("12"); err == nil || err.Error() != "12 of what? Give a unit, as in 12s or 12m" {
		t.Errorf("12: %v", err)
	}
	if got, err := new(moment).at(span, 7); got != 7 || err != nil {
		t.Errorf("no moment is %v, %v", got, err)
	}
}
