package holders

import (
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
	"github.com/gpumemtrace/gpumemtrace/internal/model/tensors"
	"github.com/gpumemtrace/gpumemtrace/internal/output/export"
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
	for _, st := range r.storages(x) {
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

// Segments returns how PyTorch's allocators divide what they have reserved, in the form that a report of a
// trace shows.
func (r *Report) Segments(version, commandLine string, start time.Time) *snapshot.Snapshot {
	s := r.Snapshot(version, commandLine, start)
	s.Meta.Moment = "now reserved by PyTorch"
	s.Samples = nil
	for i := range r.Reading.Allocators {
		a := &r.Reading.Allocators[i]
		out := snapshot.Allocator{PID: r.PID, Process: r.Process, GPU: fmt.Sprintf("cuda:%d", a.Device), Segments: segments(a)}
		s.Allocators = append(s.Allocators, out)
		sample := snapshot.Sample{Labels: snapshot.Labels{Kind: event.KindDevice.String(), Process: r.Process, PID: r.PID, GPU: out.GPU}}
		sample.InuseBytes = out.Total().Reserved
		s.Samples = append(s.Samples, sample)
	}
	return s
}

// segments returns those of an allocator, by private pool and class.
func segments(a *holder.Allocator) []snapshot.Segments {
	out := []snapshot.Segments{}
	for _, s := range tensors.OfBlocks(a) {
		out = append(out, s.Shown())
	}
	return out
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
	for _, st := range r.storages(r.Reading) {
		frames := append([]string{cmp.Or(r.Process, "python")}, holder.Segments(st.Name())...)
		for j, f := range frames {
			frames[j] = strings.ReplaceAll(render.Clean(f), ";", ":")
		}
		sums[strings.Join(frames, ";")] += size(st.Bytes)
	}
	return export.FoldedLines(w, sums)
}
