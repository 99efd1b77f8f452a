package clock

import (
	"fmt"
	"os"
	"testing"
	"time"
)

func TestClocks(t *testing.T) {
	before, boot := Monotonic(), Boot()
	time.Sleep(10 * time.Millisecond)
	if passed := Monotonic() - before; passed < 10*time.Millisecond || passed > time.Minute {
		t.Errorf("%v passed in 10 ms", passed)
	}
	if boot < before {
		t.Errorf("%v since the start, %v without suspensions", boot, before)
	}
	text, err := os.ReadFile("/proc/uptime")
	if err != nil {
		t.Fatal(err)
	}
	var up float64
	if _, err := fmt.Sscan(string(text), &up); err != nil {
		t.Fatal(err)
	}
	if d := time.Duration(up*1e9) - boot; d < -time.Second || d > time.Minute {
		t.Errorf("up for %v s, by the clock %v", up, boot)
	}
}

// Who waits for multiples of a time is done waiting when who waits for those of a part of
// it is.
func TestUntil(t *testing.T) {
	const long, short = 200 * time.Millisecond, 100 * time.Millisecond
	for range 1000 {
		before := Monotonic()
		d := Until(long)
		after := Monotonic()
		if d <= 0 || d > long {
			t.Fatalf("in %v", d)
		}
		// The multiple that it was meant until is that of a moment between.
		first, last := (before/long+1)*long, (after/long+1)*long
		if first == last && (before+d > first || after+d < first) {
			t.Fatalf("between %v and %v until %v", before, after, d)
		}
		if next := Until(short); next > d && after/short == Monotonic()/short && (before+d)/long == after/long+1 {
			t.Fatalf("%v until a multiple of %v, but %v until one of %v", next, short, d, long)
		}
	}
}
