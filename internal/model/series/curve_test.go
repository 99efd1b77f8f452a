package series

import (
	"slices"
	"testing"
)

// A curve keeps its peak and when that was, however many points there are.
func TestCurve(t *testing.T) {
	for _, n := range []int{0, 1, maxPoints, maxPoints + 1, 10*maxPoints + 7} {
		var c Curve
		for i := range n {
			c.Add(uint64(i), int64(i%1000))
		}
		c.Add(uint64(n), 5000)
		c.Add(uint64(n+1), 5000)
		c.Add(uint64(n+2), 3)
		var times []uint64
		var bytes []int64
		for time, held := range c.All {
			times, bytes = append(times, time), append(bytes, held)
			if int(time) < n && held != int64(time%1000) {
				t.Errorf("%d points: %d at %d", n, held, time)
			}
		}
		at := slices.Index(bytes, 5000)
		if len(times) > maxPoints || !slices.IsSorted(times) || times[0] > 1 || at < 0 || times[at] != uint64(n) || bytes[len(bytes)-1] != 3 {
			t.Errorf("%d points: %d, of %v to %v", n, len(times), times[0], times[len(times)-1])
		}
	}
}
