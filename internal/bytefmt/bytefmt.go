// Package bytefmt writes numbers of bytes, counts, shares and durations for people. Every
// readable output uses it, so that one number looks the same everywhere.
package bytefmt

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// units are IEC 80000-13 prefixes: each is 1024 of the one before.
var units = [...]string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}

// Format writes n in the largest unit in which the number is 1 or more,
// with three digits and none behind the point for plain bytes: "512 B",
// "1.50 MiB", "12.0 MiB", "128 MiB", "-3.00 KiB".
func Format(n int64) string {
	if n == math.MinInt64 {
		return "-8.00 EiB"
	}
	if n < 0 {
		return "-" + Format(-n)
	}
	if n < 1024 {
		return strconv.FormatInt(n, 10) + " B"
	}
	v, u := float64(n), 0
	// 1023.5 would round to "1024": it belongs to the next unit.
	for ; v >= 1023.5 && u < len(units)-1; u++ {
		v /= 1024
	}
	digits := 0
	switch {
	case v < 9.995:
		digits = 2
	case v < 99.95:
		digits = 1
	}
	return strconv.FormatFloat(v, 'f', digits, 64) + " " + units[u]
}

// Some is Format, and empty for 0: pages leave out a column of zeros.
func Some(n int64) string {
	if n == 0 {
		return ""
	}
	return Format(n)
}

// Signed is Format with a leading "+" for n > 0.
func Signed(n int64) string {
	if n > 0 {
		return "+" + Format(n)
	}
	return Format(n)
}

// Count writes n, a number of anything but bytes.
func Count(n int64) string { return strconv.FormatInt(n, 10) }

// Counted writes n with what it counts: "1 stack", "2 stacks".
func Counted[T int | int64](n T, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return Count(int64(n)) + " " + noun
}

// SomeCount is Count, and empty for 0.
func SomeCount(n int64) string {
	if n == 0 {
		return ""
	}
	return Count(n)
}

// SignedCount is Count with a leading "+" for n > 0.
func SignedCount(n int64) string {
	if n > 0 {
		return "+" + Count(n)
	}
	return Count(n)
}

// Percent writes part of whole with one decimal, "12.5%", and "-" when whole
// is zero.
func Percent(part, whole int64) string {
	if whole == 0 {
		return "-"
	}
	return strconv.FormatFloat(100*float64(part)/float64(whole), 'f', 1, 64) + "%"
}

// Duration writes d without units that are zero: "1m30s", "2h", "500ms".
func Duration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
