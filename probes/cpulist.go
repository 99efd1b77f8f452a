package probes

import (
	"strconv"
	"strings"
)

// splitList parses the kernel's list format, "0-3,7" (cpuset(7), "List
// format"). What is malformed is left out.
func splitList(text string) (spans [][2]int) {
	for part := range strings.SplitSeq(strings.TrimSpace(text), ",") {
		lo, hi, ok := strings.Cut(part, "-")
		if !ok {
			hi = lo
		}
		first, err1 := strconv.Atoi(lo)
		last, err2 := strconv.Atoi(hi)
		if err1 == nil && err2 == nil && first >= 0 && first <= last {
			spans = append(spans, [2]int{first, last})
		}
	}
	return spans
}
