// Package report writes a saved profile, or the difference between two, as
// text.
package report

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"

	"github.com/google/pprof/profile"
)

// maxSize bounds a profile, unpacked: a gzip file of a few megabytes can
// otherwise take all memory. A million samples of 40 frames need 80 MB.
const maxSize = 1 << 30

// Read parses a profile that gpumemtrace wrote. Others are an error.
func Read(r io.Reader) (*profile.Profile, error) {
	data, err := readAll(r, maxSize)
	if err != nil {
		return nil, fmt.Errorf("read profile: %w", err)
	}
	p, err := profile.ParseUncompressed(data)
	if err != nil {
		return nil, fmt.Errorf("read profile: %w", err)
	}
	if err := p.CheckValid(); err != nil {
		return nil, fmt.Errorf("read profile: %w", err)
	}
	if _, err := columnsOf(p); err != nil {
		return nil, fmt.Errorf("read profile: %w", err)
	}
	return p, nil
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

// columns are the places of our sample types in a sample's values.
type columns struct{ allocObjects, alloc, peak, inuseObjects, inuse int }

func columnsOf(p *profile.Profile) (columns, error) {
	var c columns
	for name, column := range map[string]*int{
		"alloc_objects": &c.allocObjects,
		"alloc_space":   &c.alloc,
		"peak_space":    &c.peak,
		"inuse_objects": &c.inuseObjects,
		"inuse_space":   &c.inuse,
	} {
		*column = -1
		for i, t := range p.SampleType {
			if t.Type == name {
				*column = i
			}
		}
	}
	if min(c.allocObjects, c.alloc, c.peak, c.inuseObjects, c.inuse) < 0 {
		return c, fmt.Errorf("not a profile of gpumemtrace: it must have alloc_objects, alloc_space, peak_space, inuse_objects and inuse_space")
	}
	return c, nil
}

// label returns a sample's value of a label, "" for none.
func label(s *profile.Sample, name string) string {
	if v := s.Label[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}
