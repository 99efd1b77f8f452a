package export

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
)

// Folded writes one line for each stack, as flamegraph.pl, inferno and
// speedscope read it: the process's name (with "-PID" when there are several
// processes) and the stack's frames, root first, separated by ";", a space,
// and the bytes in use. Equal stacks are one line, those that hold nothing are
// left out, and lines are sorted.
func Folded(w io.Writer, s *snapshot.Snapshot, _ Options) error {
	several := s.Several()
	sums := make(map[string]int64)
	for i := range s.Samples {
		sample := &s.Samples[i]
		if sample.InuseBytes == 0 {
			continue
		}
		var b strings.Builder
		b.WriteString(frame(sample.Process))
		if several {
			fmt.Fprintf(&b, "-%d", sample.PID)
		}
		b.WriteByte(';')
		folded(&b, sample.Frames())
		sums[b.String()] += sample.InuseBytes
	}

	out := bufio.NewWriter(w)
	for _, line := range slices.Sorted(maps.Keys(sums)) {
		fmt.Fprintf(out, "%s %d\n", line, sums[line])
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write folded stacks: %w", err)
	}
	return nil
}
