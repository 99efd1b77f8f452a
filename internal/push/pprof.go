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
	// few: no labels of samples but fewLabels.
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
// series's own. What the others say, the frames of the stack say too.
var fewLabels = []string{"kind", "gpu", "owner", "category"}

// pack returns the part of a profile as gzip-compressed pprof, nil if it has no samples.
func (x *process) pack(f form) ([]byte, error) {
	if out, ok := x.gzipped[f]; ok {
		return out, nil
	}
	p := cut(x.profile, f)
	p.TimeNanos = x.end.UnixNano()
	if f.values != held {
		p.DurationNanos = x.end.Sub(x.begin).Nanoseconds()
	}
	var out []byte
	if len(p.Sample) > 0 {
		var err error
		if out, err = compressed(p.WriteUncompressed); err != nil {
			return nil, err
		}
	}
	x.gzipped[f] = out
	return out, nil
}

// cut returns a profile that has the samples of p that are not zero in a form, and what
// they refer to.
func cut(p *profile.Profile, f form) *profile.Profile {
	out := &profile.Profile{PeriodType: p.PeriodType, Period: p.Period, Mapping: p.Mapping}
	var columns []int
	for i, t := range p.SampleType {
		if f.values.has(t.Type) {
			columns = append(columns, i)
			out.SampleType = append(out.SampleType, t)
		}
	}
	if f.values != allocated {
		out.DefaultSampleType = p.DefaultSampleType
	}
	locations := make(map[*profile.Location]bool, len(p.Location))
	functions := make(map[*profile.Function]bool, len(p.Function))
	for _, s := range p.Sample {
		cut := &profile.Sample{Location: s.Location, Value: make([]int64, len(columns)), Label: s.Label}
		zero := true
		for i, c := range columns {
			cut.Value[i] = s.Value[c]
			zero = zero && cut.Value[i] == 0
		}
		if zero {
			continue
		}
		if f.few {
			cut.Label = make(map[string][]string, len(fewLabels))
			for _, name := range fewLabels {
				if v := s.Label[name]; v != nil {
					cut.Label[name] = v
				}
			}
		}
		out.Sample = append(out.Sample, cut)
		for _, l := range s.Location {
			if locations[l] {
				continue
			}
			locations[l] = true
			for i := range l.Line {
				functions[l.Line[i].Function] = true
			}
		}
	}
	out.Location = slices.DeleteFunc(slices.Clone(p.Location), func(l *profile.Location) bool { return !locations[l] })
	out.Function = slices.DeleteFunc(slices.Clone(p.Function), func(f *profile.Function) bool { return !functions[f] })
	return out
}

// compressed returns what write writes as a gzip file.
func compressed(write func(io.Writer) error) ([]byte, error) {
	var out bytes.Buffer
	z := writers.Get().(*gzip.Writer)
	defer writers.Put(z)
	z.Reset(&out)
	err := write(z)
	_ = z.Close() // into memory
	return out.Bytes(), err
}

// compress returns b as a gzip file.
func compress(b []byte) []byte {
	out, _ := compressed(func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	})
	return out
}

// writers are of a megabyte each.
var writers = sync.Pool{New: func() any {
	z, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed) // which is a level
	return z
}}
