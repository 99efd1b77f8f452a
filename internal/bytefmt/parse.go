package bytefmt

import (
	"errors"
	"math"
	"strconv"
	"strings"
)

// Parse reads a number of bytes, KiB, MiB, GiB or TiB, such as 512MiB or 79.6GiB. It is more
// than 0.
func Parse(s string) (int64, error) {
	number, unit := s, int64(1)
	for i, suffix := range units[1:5] {
		if cut, ok := strings.CutSuffix(s, suffix); ok {
			number, unit = strings.TrimSpace(cut), 1<<(10*(i+1))
		}
	}
	v, err := strconv.ParseInt(number, 10, 64)
	if err == nil && v > 0 && v <= math.MaxInt64/unit {
		return v * unit, nil
	}
	part, err := strconv.ParseFloat(number, 64)
	if err != nil || strings.Trim(number, "0123456789.") != "" || unit == 1 || part*float64(unit) < 1 || part >= float64(math.MaxInt64/unit) {
		return 0, errors.New("give a size such as 512MiB")
	}
	return int64(part * float64(unit)), nil
}

// Exact writes n, which is not negative, as Parse reads it.
func Exact(n int64) string {
	u := 0
	for ; n > 0 && n%1024 == 0 && u < 4; u++ {
		n /= 1024
	}
	if u == 0 {
		return strconv.FormatInt(n, 10)
	}
	return strconv.FormatInt(n, 10) + units[u]
}
