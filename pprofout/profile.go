// Package pprofout turns a snapshot into a pprof profile
// (https://github.com/google/pprof/blob/main/proto/profile.proto).
package pprofout

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/google/pprof/profile"

	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
)

// sampleTypes are in every profile, in this order: pprof neither merges nor
// compares profiles whose lists differ.
var sampleTypes = slices.DeleteFunc(slices.Clone(snapshot.AllValues[:]), func(v snapshot.Value) bool { return v.Failed })

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

// Profile returns s as a pprof profile. Its sample types are those of
// snapshot.AllValues that do not count failed calls; inuse_space is the default.
//
// Samples with equal stacks and labels are one sample, samples without a value
// are left out, and failed allocations are told in the comments only. The
// string labels are those of snapshot.AllLabels, each where known. The result
// does not depend on the order of s.Samples.
func Profile(s *snapshot.Snapshot) (*profile.Profile, error) {
	if s == nil {
		return nil, errors.New("build profile: no snapshot")
	}
	p := &profile.Profile{
		DefaultSampleType: "inuse_space",
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

	tables := newTables(s.Mappings)
	several := s.Several()
	for _, m := range tables.sums(s.Samples) {
		sample := &profile.Sample{
			Location: m.stack,
			Value:    make([]int64, len(sampleTypes)),
			Label:    labels(&m.Labels, several),
		}
		for i, v := range sampleTypes {
			sample.Value[i] = *v.Of(&m.Values)
		}
		p.Sample = append(p.Sample, sample)
	}
	tables.fill(p)

	if err := p.CheckValid(); err != nil {
		return nil, fmt.Errorf("build profile: %w", err)
	}
	return p, nil
}

func labels(l *snapshot.Labels, several bool) map[string][]string {
	m := make(map[string][]string, len(snapshot.AllLabels))
	for i := range snapshot.AllLabels {
		label := &snapshot.AllLabels[i]
		if text := label.Get(l); text != "" && (several || !label.PerRun) {
			m[label.Name] = []string{render.Clean(text)}
		}
	}
	return m
}
