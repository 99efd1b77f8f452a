package recordtest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// Create begins a recording in a new file.
func Create(t testing.TB, path string) *record.Writer {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	w, err := record.Create(f, record.WriterOptions{Unbounded: true})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// File writes records to a new file, whole, and returns its path.
func File(t testing.TB, records ...record.Record) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.gmt")
	w := Create(t, path)
	for _, r := range records {
		w.Append(r)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range w.Loss() {
		if c.Value != 0 {
			t.Fatalf("%s = %d", c.Name, c.Value)
		}
	}
	return path
}
