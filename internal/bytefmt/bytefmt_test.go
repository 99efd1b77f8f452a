package bytefmt

import (
	"math"
	"testing"
	"time"
)

func TestFormat(t *testing.T) {
	for _, c := range []struct {
		n    int64
		want string
	}{
		{0, "0 B"},
		{1, "1 B"},
		{1023, "1023 B"},
		{1024, "1.00 KiB"},
		{1536, "1.50 KiB"},
		{99*1024 + 972, "99.9 KiB"},
		{99*1024 + 1000, "100 KiB"},
		{1<<20 - 1, "1.00 MiB"},
		{1023<<10 + 511, "1023 KiB"},
		{1023<<10 + 513, "1.00 MiB"},
		{1 << 20, "1.00 MiB"},
		{128 << 20, "128 MiB"},
		{21 << 30, "21.0 GiB"},
		{1 << 40, "1.00 TiB"},
		{1 << 50, "1.00 PiB"},
		{math.MaxInt64, "8.00 EiB"},
		{math.MinInt64, "-8.00 EiB"},
		{-3 << 10, "-3.00 KiB"},
	} {
		if got := Format(c.n); got != c.want {
			t.Errorf("Format(%d) = %q, want %q", c.n, got, c.want)
		}
	}
}

func TestSigned(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 2048: "+2.00 KiB", -2048: "-2.00 KiB"} {
		if got := Signed(n); got != want {
			t.Errorf("Signed(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestCount(t *testing.T) {
	for n, want := range map[int64][2]string{0: {"0", "0"}, 2048: {"2048", "+2048"}, -3: {"-3", "-3"}} {
		if got := [2]string{Count(n), SignedCount(n)}; got != want {
			t.Errorf("%d is written %q, want %q", n, got, want)
		}
	}
}

func TestCounted(t *testing.T) {
	for n, want := range map[int]string{0: "0 stacks", 1: "1 stack", 2: "2 stacks", 1234: "1234 stacks"} {
		if got := Counted(n, "stack"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestPercent(t *testing.T) {
	for _, c := range []struct {
		part, whole int64
		want        string
	}{{1, 8, "12.5%"}, {0, 8, "0.0%"}, {8, 8, "100.0%"}, {3, 0, "-"}} {
		if got := Percent(c.part, c.whole); got != c.want {
			t.Errorf("Percent(%d, %d) = %q, want %q", c.part, c.whole, got, c.want)
		}
	}
}

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0:                             "0s",
		500 * time.Millisecond:        "500ms",
		10 * time.Second:              "10s",
		80 * time.Second:              "1m20s",
		10 * time.Minute:              "10m",
		time.Hour:                     "1h",
		100*time.Hour + 2*time.Second: "100h0m2s",
		2*time.Hour + 40*time.Minute:  "2h40m",
	} {
		if got := Duration(d); got != want {
			t.Errorf("Duration(%d) = %q, want %q", d, got, want)
		}
	}
}
