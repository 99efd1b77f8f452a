package pprofout

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/google/pprof/profile"

	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
)

// maxSize bounds a profile, unpacked: a gzip file of a few megabytes can
// otherwise take all memory. A million samples of 40 frames need 80 MB.
const maxSize = 1 << 30

// Read returns the snapshot of a profile that Write wrote, as far as that tells
// of it: samples without mappings and failed calls, times, the target, and all
// comments as notes. Other profiles are an error.
func Read(r io.Reader) (s *snapshot.Snapshot, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("read profile: %w", err)
		}
	}()
	data, err := readAll(r, maxSize)
	if err != nil {
		return nil, err
	}
	p, err := profile.ParseUncompressed(data)
	if err != nil {
		return nil, err
	}
	if err := p.CheckValid(); err != nil {
		return nil, err
	}
	columns, err := columnsOf(p)
	if err != nil {
		return nil, err
	}

	s = &snapshot.Snapshot{Notes: p.Comments}
	s.Meta.Duration = time.Duration(p.DurationNanos)
	if p.TimeNanos != 0 {
		s.Meta.Start = time.Unix(0, p.TimeNanos).UTC()
	}
	for _, c := range slices.Backward(p.Comments) { // the first one counts
		if target, ok := strings.CutPrefix(c, targetName+": "); ok {
			s.Meta.Target = target
		}
	}
	locations := make(map[*profile.Location]*snapshot.Location, len(p.Location))
	for _, l := range p.Location {
		locations[l] = readLocation(l)
	}
	for _, from := range p.Sample {
		var to snapshot.Sample
		for i, v := range sampleTypes {
			*v.Of(&to.Values) = from.Value[columns[i]]
		}
		for i := range snapshot.AllLabels {
			l := &snapshot.AllLabels[i]
			if text := from.Label[l.Name]; len(text) > 0 {
				if err := l.Set(&to.Labels, text[0]); err != nil {
					return nil, err
				}
			}
		}
		for _, l := range from.Location {
			to.Stack = append(to.Stack, locations[l])
		}
		s.Samples = append(s.Samples, to)
	}
	return s, nil
}

// columnsOf returns where p has each of sampleTypes.
func columnsOf(p *profile.Profile) ([]int, error) {
	columns := make([]int, len(sampleTypes))
	for i, v := range sampleTypes {
		columns[i] = slices.IndexFunc(p.SampleType, func(t *profile.ValueType) bool { return t.Type == v.Name })
		if columns[i] < 0 {
			return nil, fmt.Errorf("not a profile of gpumemtrace: it has no %s", v.Name)
		}
	}
	return columns, nil
}

func readLocation(l *profile.Location) *snapshot.Location {
	out := &snapshot.Location{Address: l.Address}
	for _, line := range l.Line {
		f := line.Function
		out.Lines = append(out.Lines, snapshot.Line{Function: f.Name, System: f.SystemName, File: f.Filename, Line: int(line.Line)})
	}
	if len(out.Lines) == 0 { // another program has taken the names away
		out.Lines = []snapshot.Line{{Function: fmt.Sprintf("0x%x", l.Address)}}
	}
	return out
}

func readAll(r io.Reader, size int64) ([]byte, error) {
	data, err := limited(r, size)
	if err != nil || !bytes.HasPrefix(data, []byte{0x1f, 0x8b}) {
		return data, err
	}
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	return limited(z, size)
}

func limited(r io.Reader, size int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, size+1))
	if err == nil && int64(len(data)) > size {
		err = fmt.Errorf("larger than %d bytes", size)
	}
	return data, err
}
