package recordtest

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// Create begins a recording in a new file.
func Create(t testing.TB, path string) *record.Writer {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	w, err := record.Create(f, record.WriterOptions{})
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
	for i, r := range records {
		w.Append(r)
		if i%10_000 == 0 {
			time.Sleep(time.Millisecond) // for the disk
		}
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
