// Package pprofout writes what call stacks hold as a pprof profile
// (https://github.com/google/pprof/blob/main/proto/profile.proto), as gpumemtrace does, and reads
// such profiles.
package pprofout

import (
	"io"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/pprof"
)

type (
	// A Sample is a call stack, innermost frame first, with labels and values.
	Sample = snapshot.Sample
	// A Location is a frame, as symbolize finds it for an address.
	Location = snapshot.Location
	// A Line is a function of a Location.
	Line = snapshot.Line
	// A Mapping is the file that a Location is in.
	Mapping = snapshot.Mapping
	// Labels are what tells samples of one stack apart: process, GPU, kind of memory.
	Labels = snapshot.Labels
	// Who is the part of Labels that says whose process it is.
	Who = snapshot.Who
	// Values are bytes and numbers of allocations.
	Values = snapshot.Values
)

// A Profile is what stacks hold at one moment.
type Profile struct {
	Target   string    // what was traced
	Start    time.Time // of the trace
	Duration time.Duration
	Samples  []Sample
	Notes    []string // sentences for a reader; from Read all comments of the profile
}

// Write writes p to w as a gzip-compressed pprof profile. Samples with equal stacks and labels
// become one.
func Write(w io.Writer, p *Profile) error {
	meta := snapshot.Meta{Target: p.Target, Start: p.Start, Duration: p.Duration}
	return pprof.Write(w, &snapshot.Snapshot{Meta: meta, Samples: p.Samples, Notes: p.Notes})
}

// Read reads a profile that Write or gpumemtrace wrote, without mappings. Other profiles are an
// error, and so are those that would need more memory than one of their size that Write wrote.
func Read(r io.Reader) (*Profile, error) {
	s, err := pprof.Read(r)
	if err != nil {
		return nil, err
	}
	return &Profile{s.Meta.Target, s.Meta.Start, s.Meta.Duration, s.Samples, s.Notes}, nil
}
