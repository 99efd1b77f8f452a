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
