package recordtest

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/record"
)

// File writes records to a new file, whole, and returns its path.
func File(t testing.TB, records ...record.Record) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.gmt")
	w, err := record.Create(path, record.WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
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
