// Package pprof turns a snapshot into a pprof profile
// (https://github.com/google/pprof/blob/main/proto/profile.proto).
package pprof

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/google/pprof/profile"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// sampleTypes, of memory on GPUs alone, and hostType are in every profile, in this order: pprof
// neither merges nor compares profiles whose lists differ.
var sampleTypes = slices.DeleteFunc(slices.Clone(snapshot.AllValues[:]), func(v snapshot.Value) bool { return v.Failed })

// peakType is the default of a profile that shows peaks.
const peakType = "peak_space"

// hostType is what is held of memory that is on no GPU.
const hostType = "host_space"

// windowTypes follow these where stacks are known that made tensors in windows
// (--tensors-window): what each held at the peak of a training step, and what it allocates in one.
var windowTypes = [...]string{"window_peak_space", "window_alloc_space"}

// Write writes s to w as a gzip-compressed pprof profile.
func Write(w io.Writer, s *snapshot.Snapshot) error {
	p, err := Profile(s)
	if err != nil {
		return err
	}
	if err := p.Write(w); err != nil {
		return fmt.Errorf("write profile: %w", err)
	}
	return nil
}

// Profile returns s as a pprof profile. Its sample types are those of snapshot.AllValues that do not
// count failed calls, of memory on GPUs alone, and host_space, in bytes, for other memory. The default
// is peak_space where s shows peaks, else inuse_space.
//
// Samples with equal stacks and labels are one sample, samples without a value
// are left out, and only comments mention failed allocations. The
// string labels are those of snapshot.AllLabels, each where known. The result
// does not depend on the order of s.Samples.
//
// Tensors that were seen in windows are samples of their own, which have the values of windowTypes and
// no others. Their label "window" says what window_alloc_space is of: "per step", or "per second"
// where no step was seen.
func Profile(s *snapshot.Snapshot) (*profile.Profile, error) {
	p := &profile.Profile{
		DefaultSampleType: defaultType(&s.Meta),
		PeriodType:        &profile.ValueType{Type: "space", Unit: "bytes"},
		Period:            1,
		DurationNanos:     s.Meta.Duration.Nanoseconds(),
		Comments:          comments(s),
	}
	if !s.Meta.Start.IsZero() {
		p.TimeNanos = s.Meta.Start.UnixNano()
	}
	for _, v := range sampleTypes {
		p.SampleType = append(p.SampleType, &profile.ValueType{Type: v.Name, Unit: v.Unit})
	}

	p.SampleType = append(p.SampleType, &profile.ValueType{Type: hostType, Unit: snapshot.Bytes})
	windows := len(p.SampleType) // the first of their types
	if slices.ContainsFunc(s.Windowed, func(x snapshot.Windowed) bool { return len(x.Rows) > 0 }) {
		for _, name := range windowTypes {
			p.SampleType = append(p.SampleType, &profile.ValueType{Type: name, Unit: snapshot.Bytes})
		}
	}

	frames := 0
	for i := range s.Samples {
		frames += len(s.Samples[i].Frames())
	}
	tables := newTables(s.Mappings, frames)
	several := s.Several()
	add := func(m *sum, values []int64) *profile.Sample {
		sample := &profile.Sample{Location: m.stack, Value: values, Label: labels(m.Labels, several)}
		p.Sample = append(p.Sample, sample)
		return sample
	}
	for _, m := range tables.sums(s.Samples) {
		values := make([]int64, len(p.SampleType))
		if snapshot.OnGPU(m.Kind) {
			for i, v := range sampleTypes {
				values[i] = *v.Of(&m.Values)
			}
		} else if values[len(sampleTypes)] = s.Meta.Held(&m.Values); values[len(sampleTypes)] == 0 {
			continue
		}
		add(m, values)
	}
	for i := range s.Windowed {
		x := &s.Windowed[i]
		for _, m := range tables.sums(inWindows(x)) {
			values := make([]int64, len(p.SampleType))
			values[windows], values[windows+1] = m.PeakBytes, m.AllocBytes
			add(m, values).Label["window"] = []string{"per " + strings.ToLower(x.Per())}
		}
	}
	tables.fill(p)

	if err := p.CheckValid(); err != nil {
		return nil, fmt.Errorf("build profile: %w", err)
	}
	return p, nil
}

// defaultType returns what pprof shows of a profile.
func defaultType(m *snapshot.Meta) string {
	if m.Peaks {
		return peakType
	}
	return "inuse_space"
}

// inWindows returns a sample for each row of x, with what it held at the peak, and what it allocates in
// a step or a second.
func inWindows(x *snapshot.Windowed) (out []snapshot.Sample) {
	for i := range x.Rows {
		r := &x.Rows[i]
		bytes, _ := x.Share(r)
		one := r.Sample
		one.Values = snapshot.Values{PeakBytes: r.Sample.PeakBytes, AllocBytes: int64(bytes)}
		out = append(out, one)
	}
	if x.Before != 0 && len(out) > 0 {
		out = append(out, snapshot.Sample{Stack: []*snapshot.Location{{Lines: []snapshot.Line{{Function: render.BeforeWindow}}}},
			Labels: snapshot.Labels{Kind: out[0].Kind, GPU: x.GPU, PID: x.PID, Process: x.Process}, Values: snapshot.Values{PeakBytes: x.Before}})
	}
	return out
}

func labels(l *snapshot.Labels, several bool) map[string][]string {
	m := map[string][]string{} // most samples have few of them
	for i := range snapshot.AllLabels {
		label := &snapshot.AllLabels[i]
		if text := label.Get(l); text != "" && (several || !label.PerRun) {
			m[label.Name] = []string{render.Clean(text)}
		}
	}
	return m
}

// A sum adds up the samples with one stack and one set of labels.
type sum struct {
	stack []*profile.Location // leaf first
	*snapshot.Labels
	snapshot.Values
}

// sums returns those that have a value, most in use first, in an order that
// depends on their contents alone.
func (t *tables) sums(samples []snapshot.Sample) []*sum {
	type key struct {
		labels snapshot.Labels
		stack  int
	}
	numbers, stacks := map[string]int{}, [][]*profile.Location{}
	byKey := make(map[key]*sum, len(samples))
	var out []*sum
	var id []byte
	var stack []*profile.Location
	for i := range samples {
		s := &samples[i]
		id, stack = id[:0], stack[:0]
		for _, l := range s.Frames() {
			loc := t.location(l)
			id, stack = binary.AppendUvarint(id, loc.ID), append(stack, loc)
		}
		n, ok := numbers[string(id)]
		if !ok {
			n = len(stacks)
			numbers[string(id)], stacks = n, append(stacks, slices.Clone(stack))
		}
		k := key{s.Labels, n}
		m := byKey[k]
		if m == nil {
			m = &sum{Labels: &s.Labels, stack: stacks[n]}
			byKey[k] = m
			out = append(out, m)
		}
		m.Add(&s.Values)
	}
	out = slices.DeleteFunc(out, func(m *sum) bool { return !m.Succeeded() })
	slices.SortFunc(out, compare)
	return out
}

func compare(a, b *sum) int {
	if c := cmp.Or(
		cmp.Compare(b.InuseBytes, a.InuseBytes),
		cmp.Compare(b.AllocBytes, a.AllocBytes),
		cmp.Compare(b.AllocObjects, a.AllocObjects),
	); c != 0 {
		return c
	}
	if c := a.Labels.Compare(b.Labels); c != 0 {
		return c
	}
	return slices.CompareFunc(a.stack, b.stack, compareLocations)
}

func compareLocations(a, b *profile.Location) int {
	if a == b {
		return 0
	}
	return cmp.Or(
		slices.CompareFunc(a.Line, b.Line, func(a, b profile.Line) int {
			return cmp.Or(
				strings.Compare(a.Function.Name, b.Function.Name),
				strings.Compare(a.Function.Filename, b.Function.Filename),
				cmp.Compare(a.Line, b.Line),
				strings.Compare(a.Function.SystemName, b.Function.SystemName),
			)
		}),
		cmp.Compare(a.Address, b.Address),
	)
}
