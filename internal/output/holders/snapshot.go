package holders

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// Snapshot returns the reading in the form that the outputs of traces show. The stack of a
// tensor is the path to it: each object on the way is a frame, and its name is its full path.
func (r *Report) Snapshot(version, commandLine string, start time.Time) *snapshot.Snapshot {
	x := r.Reading
	s := &snapshot.Snapshot{
		Meta: snapshot.Meta{Version: version, CommandLine: commandLine, Target: r.target(), Start: start,
			Duration: time.Duration(x.End - min(x.Begin, x.End)), StackMode: "paths of objects in the heap of " + runtime(x)},
		Processes: []snapshot.Process{{PID: r.PID, Name: r.Process}},
		Loss:      x.Loss,
	}
	locations := make(map[string]*snapshot.Location)
	samples := make(map[string]*snapshot.Sample)
	storages := r.storages(x)
	for i := range storages {
		st := &storages[i]
		kind := event.KindTensor.String()
		if st.OnCPU() {
			kind = event.KindHost.String()
		}
		id := fmt.Sprintf("%q", []string{st.Name(), st.Role.String(), kind})
		sample := samples[id]
		if sample == nil {
			sample = &snapshot.Sample{Labels: snapshot.Labels{Kind: kind, Category: st.Role.String(), Process: r.Process, PID: r.PID}}
			var path strings.Builder
			for _, segment := range holder.Segments(st.Name()) {
				path.WriteString(segment)
				l := locations[path.String()]
				if l == nil {
					l = &snapshot.Location{Lines: []snapshot.Line{{Function: path.String()}}}
					locations[path.String()] = l
				}
				sample.Stack = append(sample.Stack, l)
			}
			slices.Reverse(sample.Stack)
			samples[id] = sample
		}
		n := size(st.Bytes)
		sample.Add(&snapshot.Values{AllocObjects: 1, AllocBytes: n, PeakBytes: n, InuseObjects: 1, InuseBytes: n})
		p := &s.Processes[0]
		if !st.OnCPU() {
			p.Inuse, p.Peak, p.Allocated = p.Inuse+n, p.Peak+n, p.Allocated+n
		} else {
			p.Host += n
		}
		p.LiveObjects++
	}
	for _, id := range slices.Sorted(maps.Keys(samples)) {
		s.Samples = append(s.Samples, *samples[id])
	}
	return s
}

func (r *Report) target() string {
	if r.Process == "" {
		return fmt.Sprintf("pid %d", r.PID)
	}
	return fmt.Sprintf("pid %d (%s)", r.PID, r.Process)
}

// Folded writes one line for each path, as flame graphs read it: the steps of the path,
// separated by ";", a space, and bytes.
func (r *Report) Folded(w io.Writer) error {
	sums := make(map[string]int64)
	storages := r.storages(r.Reading)
	for i := range storages {
		frames := append([]string{cmp.Or(r.Process, "python")}, holder.Segments(storages[i].Name())...)
		for j, f := range frames {
			frames[j] = strings.ReplaceAll(render.Clean(f), ";", ":")
		}
		sums[strings.Join(frames, ";")] += size(storages[i].Bytes)
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
