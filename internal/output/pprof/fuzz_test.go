package pprof

import (
	"bytes"
	"compress/gzip"
	"io"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
)

// No profile makes Read panic or take much memory, and what it returns can be written.
func FuzzRead(f *testing.F) {
	withinMemory := recordtest.LimitMemory(f)
	for _, build := range snapshots {
		var b bytes.Buffer
		if err := Write(&b, build()); err != nil {
			f.Fatal(err)
		}
		z, err := gzip.NewReader(&b)
		if err != nil {
			f.Fatal(err)
		}
		data, err := io.ReadAll(z)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if s, err := Read(bytes.NewReader(data)); err == nil {
			if err := Write(io.Discard, s); err != nil {
				t.Fatal(err)
			}
		}
		withinMemory(t)
	})
}
