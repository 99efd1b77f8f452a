package main

import (
	"errors"
	"math"
	"strconv"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
)

// A size is a number of bytes: a pflag.Value.
type size int64

func (n size) String() string {
	if n == 0 {
		return ""
	}
	return bytefmt.Format(int64(n))
}

// Type names the value in help texts.
func (*size) Type() string { return "size" }

// Set parses a whole number of bytes, KiB, MiB, GiB or TiB.
func (n *size) Set(s string) error {
	number, unit := s, int64(1)
	for i, suffix := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if cut, ok := strings.CutSuffix(s, suffix); ok {
			number, unit = strings.TrimSpace(cut), 1<<(10*(i+1))
		}
	}
	v, err := strconv.ParseInt(number, 10, 64)
	if err != nil || v <= 0 || v > math.MaxInt64/unit {
		return errors.New("give a size such as 512MiB")
	}
	*n = size(v * unit)
	return nil
}
