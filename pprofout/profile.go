// Package pprofout turns a snapshot into a pprof profile
// (https://github.com/google/pprof/blob/main/proto/profile.proto).
package pprofout

import (
	"errors"
	"fmt"
	"io"

	"github.com/google/pprof/profile"

	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
)

// sampleTypes are in every profile, in this order: pprof neither merges nor
// compares profiles whose lists differ.
var sampleTypes = [...]struct {
	name, unit string
	value      func(*snapshot.Values) *int64
}{
	{"alloc_objects", "count", func(v *snapshot.Values) *int64 { return &v.AllocObjects }},
	{"alloc_space", "bytes", func(v *snapshot.Values) *int64 { return &v.AllocBytes }},
	{"peak_space", "bytes", func(v *snapshot.Values) *int64 { return &v.PeakBytes }},
	{"inuse_objects", "count", func(v *snapshot.Values) *int64 { return &v.InuseObjects }},
	{"inuse_space", "bytes", func(v *snapshot.Values) *int64 { return &v.InuseBytes }},
}

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

// Profile returns s as a pprof profile with the sample types alloc_objects,
// alloc_space, peak_space, inuse_objects and inuse_space (the default).
//
// Samples with equal stacks and labels are one sample, samples without a value
// are left out, and failed allocations are told in the comments only. The
// string labels are kind, api, runtime, gpu, owner and process, each where
// known, and pid when s has more than one process. The result does not depend
// on the order of s.Samples.
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
	for _, t := range sampleTypes {
		p.SampleType = append(p.SampleType, &profile.ValueType{Type: t.name, Unit: t.unit})
	}

	tables := newTables(p, s.Mappings)
	withPID := manyProcesses(s)
	for _, m := range merge(s.Samples) {
		sample := &profile.Sample{
			Value: make([]int64, len(sampleTypes)),
			Label: labels(&m.Labels, withPID),
		}
		for i, t := range sampleTypes {
			sample.Value[i] = *t.value(&m.Values)
		}
		for _, l := range m.stack {
			sample.Location = append(sample.Location, tables.location(l))
		}
		p.Sample = append(p.Sample, sample)
	}
	tables.finish()

	if err := p.CheckValid(); err != nil {
		return nil, fmt.Errorf("build profile: %w", err)
	}
	return p, nil
}

func labels(l *snapshot.Labels, withPID bool) map[string][]string {
	m := make(map[string][]string, 7)
	set := func(key, value string) {
		if value != "" {
			m[key] = []string{render.Clean(value)}
		}
	}
	set("kind", l.Kind)
	set("api", l.API)
	set("runtime", l.Runtime)
	set("gpu", l.GPU)
	set("owner", l.Owner)
	set("process", l.Process)
	if withPID {
		set("pid", fmt.Sprint(l.PID))
	}
	return m
}

func manyProcesses(s *snapshot.Snapshot) bool {
	pids := make(map[int]bool)
	for i := range s.Processes {
		pids[s.Processes[i].PID] = true
	}
	for i := range s.Samples {
		pids[s.Samples[i].PID] = true
	}
	return len(pids) > 1
}
