package push

import (
	"bytes"
	"compress/gzip"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/google/pprof/profile"
)

// A form is which part of a profile a store takes as one pprof profile.
type form struct {
	values part
	// few: samples have the labels fewLabels alone.
	few bool
}

type part int

const (
	everything part = iota
	// allocated is what was allocated in the interval: its profile lasts as long.
	allocated
	// held is what was in use at its end, and at the peak: its profile is of a moment.
	held
)

func (p part) has(sampleType string) bool {
	return p == everything || strings.HasPrefix(sampleType, "alloc_") == (p == allocated)
}

// fewLabels make a series each in Pyroscope, which takes the labels of samples for a
// series's own. The frames of the stack say what the others do.
var fewLabels = []string{"kind", "gpu", "owner", "category"}

// pack returns a form of the profile as gzip-compressed pprof, nil if no sample of it has a
// value. A form that several stores take is made once.
func (x *process) pack(f form) ([]byte, error) {
	out, ok := x.gzipped[f]
	if !ok {
		var err error
		if p := x.form(f); len(p.Sample) > 0 {
			out, err = compress(p.WriteUncompressed)
		}
		if err != nil {
			return nil, err
		}
		x.gzipped[f] = out
	}
	return out, nil
}

// form returns a form of the profile, which shares what it refers to.
func (x *process) form(f form) *profile.Profile {
	p := x.profile
	out := &profile.Profile{PeriodType: p.PeriodType, Period: p.Period, Mapping: p.Mapping, TimeNanos: x.end.UnixNano()}
	if f.values != held {
		out.DurationNanos = x.end.Sub(x.begin).Nanoseconds()
	}
	if f.values != allocated {
		out.DefaultSampleType = p.DefaultSampleType
	}
	var columns []int
	for i, t := range p.SampleType {
		if f.values.has(t.Type) {
			columns, out.SampleType = append(columns, i), append(out.SampleType, t)
		}
	}
	locations, functions := make([]bool, len(p.Location)+1), make([]bool, len(p.Function)+1) // pprofout numbers from 1 on
	for _, s := range p.Sample {
		values := make([]int64, len(columns))
		for i, c := range columns {
			values[i] = s.Value[c]
		}
		if !slices.ContainsFunc(values, func(v int64) bool { return v != 0 }) {
			continue
		}
		labels := s.Label
		if f.few {
			labels = map[string][]string{}
			for _, name := range fewLabels {
				if has := s.Label[name]; has != nil {
					labels[name] = has
				}
			}
		}
		out.Sample = append(out.Sample, &profile.Sample{Location: s.Location, Value: values, Label: labels})
		for _, l := range s.Location {
			locations[l.ID] = true
		}
	}
	for _, l := range p.Location {
		if locations[l.ID] {
			out.Location = append(out.Location, l)
			for i := range l.Line {
				functions[l.Line[i].Function.ID] = true
			}
		}
	}
	for _, fn := range p.Function {
		if functions[fn.ID] {
			out.Function = append(out.Function, fn)
		}
	}
	return out
}

// compressors are large, and used again.
var compressors = sync.Pool{New: func() any {
	z, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed) // which is a level
	return z
}}

// compress returns what write writes as a gzip file.
func compress(write func(io.Writer) error) ([]byte, error) {
	z := compressors.Get().(*gzip.Writer)
	defer compressors.Put(z)
	var b bytes.Buffer
	z.Reset(&b)
	if err := write(z); err != nil {
		return nil, err
	}
	err := z.Close()
	return b.Bytes(), err
}
