package leak

import (
	"math/bits"
	"strings"
	"time"
)

// An Age counts the allocations of a stack whose age is at least From and less
// than To. The first is [0, interval), then [1, 2), [2, 4), [4, 8), ...
// intervals.
type Age struct {
	From, To       time.Duration
	Bytes, Objects int64
}

// age counts one allocation.
func (s *Stack) age(age time.Duration, size int64, interval time.Duration) {
	n := bits.Len64(uint64(age / interval))
	for i := len(s.Ages); i <= n; i++ {
		a := Age{To: interval << i}
		if i > 0 {
			a.From = interval << (i - 1)
		}
		s.Ages = append(s.Ages, a)
	}
	s.Ages[n].Bytes += size
	s.Ages[n].Objects++
}

// duration returns d as people write it: "1m30s", "2h", "500ms".
func duration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
