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

// SampleTypes are what Options.SampleType may name, as in the pprof output,
// and the failed calls, which pprof profiles do not have.
func SampleTypes() []string { return slices.Sorted(maps.Keys(values)) }

var values = map[string]func(*snapshot.Values) int64{
	"alloc_objects":  func(v *snapshot.Values) int64 { return v.AllocObjects },
	"alloc_space":    func(v *snapshot.Values) int64 { return v.AllocBytes },
	"peak_space":     func(v *snapshot.Values) int64 { return v.PeakBytes },
	"inuse_objects":  func(v *snapshot.Values) int64 { return v.InuseObjects },
	"inuse_space":    func(v *snapshot.Values) int64 { return v.InuseBytes },
	"failed_objects": func(v *snapshot.Values) int64 { return v.FailedObjects },
	"failed_space":   func(v *snapshot.Values) int64 { return v.FailedBytes },
}

// Folded writes one line for each stack, as flamegraph.pl, inferno and
// speedscope read it: the process's name (with "-PID" when there are several
// processes) and the stack's frames, root first, separated by ";", a space,
// and the value. Equal stacks are one line, those of value 0 are left out, and
// lines are sorted.
func Folded(w io.Writer, s *snapshot.Snapshot, o Options) error {
	name := o.SampleType
	if name == "" {
		name = "inuse_space"
	}
	value, ok := values[name]
	if !ok {
		return fmt.Errorf("unknown sample type %q: use one of %s", name, strings.Join(SampleTypes(), ", "))
	}

	withPID := manyProcesses(s)
	sums := make(map[string]int64)
	for i := range s.Samples {
		sample := &s.Samples[i]
		v := value(&sample.Values)
		if v == 0 {
			continue
		}
		var b strings.Builder
		b.WriteString(frame(sample.Process))
		if withPID {
			fmt.Fprintf(&b, "-%d", sample.PID)
		}
		b.WriteByte(';')
		folded(&b, sample.Stack)
		sums[b.String()] += v
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
