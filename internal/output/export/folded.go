package export

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// Folded writes one line for each stack, as flamegraph.pl, inferno and
// speedscope read it: the process's name (with "-PID" when there are several
// processes) and the stack's frames, root first, separated by ";", a space,
// and the bytes in use, or at the peak where s shows peaks. Equal stacks are one line, and lines are sorted. Stacks
// that hold nothing are left out, and so are sums below zero, which come of estimates: a
// flame graph has no room for them.
func Folded(w io.Writer, s *snapshot.Snapshot, _ Options) error {
	several := s.Several()
	sums := make(map[string]int64)
	for i := range s.Samples {
		sample := &s.Samples[i]
		held := s.Meta.Held(&sample.Values)
		if held == 0 {
			continue
		}
		var b strings.Builder
		b.WriteString(frame(sample.Process))
		if several {
			fmt.Fprintf(&b, "-%d", sample.PID)
		}
		b.WriteByte(';')
		folded(&b, sample.Frames())
		sums[b.String()] += held
	}
	return FoldedLines(w, sums)
}

// FoldedLines writes the lines of Folded, of which sums are the bytes.
func FoldedLines(w io.Writer, sums map[string]int64) error {
	out := bufio.NewWriter(w)
	for _, line := range slices.Sorted(maps.Keys(sums)) {
		if sums[line] < 0 {
			continue
		}
		fmt.Fprintf(out, "%s %d\n", line, sums[line])
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write folded stacks: %w", err)
	}
	return nil
}

// folded appends the stack to b, root first, separated by ";". Frames are
// cleaned, and their own semicolons become colons, as Brendan Gregg's
// stackcollapse programs write them.
func folded(b *strings.Builder, stack []*snapshot.Location) {
	for i, s := range slices.Backward(stack) {
		lines := s.Lines
		for j, line := range slices.Backward(lines) {
			if i < len(stack)-1 || j < len(lines)-1 {
				b.WriteByte(';')
			}
			b.WriteString(frame(line.Function))
		}
	}
}

func frame(name string) string {
	return strings.ReplaceAll(render.Clean(name), ";", ":")
}
