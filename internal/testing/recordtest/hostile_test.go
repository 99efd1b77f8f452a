package recordtest

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// Each record of a hostile recording is read: none is refused as damage.
func TestHostileIsRead(t *testing.T) {
	for _, c := range Hostile {
		t.Run(c.Name, func(t *testing.T) {
			f := Forge(1_000_000)
			f.Trace(10, "", "cuMemAlloc_v2")
			c.Fill(f)
			if n := read(t, f); n != f.Records {
				t.Errorf("read %d records of %d", n, f.Records)
			}
		})
	}
}

// read returns how many records of a recording are read.
func read(t *testing.T, f *Forger) (n int) {
	data := f.Bytes()
	r, err := record.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := r.Next(); errors.Is(err, io.EOF) {
			return n
		} else if err != nil {
			t.Fatal(err)
		}
		n++
	}
}
