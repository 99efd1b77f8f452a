package unwind

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// A file in parts has the table that it has as a whole. A file of Go is one part.
func TestPartsOfTable(t *testing.T) {
	most := 0
	for _, path := range largeLibraries(t) {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		whole, err := readTable(f)
		if err != nil {
			t.Logf("%s: %v", path, err)
			f.Close()
			continue
		}
		parts := split(f, 7)
		got, err := readTable(parts...)
		if err != nil || !bytes.Equal(got, whole) {
			t.Errorf("%s in %d parts: %d bytes of table, %v; as a whole %d", path, len(parts), len(got), err, len(whole))
		}
		most = max(most, len(parts))
		t.Logf("%s: %d parts", filepath.Base(path), len(parts))
		f.Close()
	}
	if most < 2 {
		t.Error("no file in parts")
	}
}
