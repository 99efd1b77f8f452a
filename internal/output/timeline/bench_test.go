package timeline

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
)

var (
	events = flag.Int("timeline.events", 300_000, "events of the long recording")
	keep   = flag.String("timeline.keep", "", "folder where BenchmarkWrite leaves the recording and the page")
)

// training writes a recording of so many records of two processes that train.
func training(t testing.TB, path string, n int) {
	t.Helper()
	job := &recordtest.Training{Stacks: 500, Depth: 40, Live: 10_000, Pieces: 2_500}
	w := recordtest.Create(t, path)
	job.Begin(w.Append)
	for i := range n {
		w.Append(job.Next())
		if i%10_000 == 0 {
			time.Sleep(2 * time.Millisecond) // for the disk
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
}

// BenchmarkWrite makes a page of a long recording: -timeline.events 10000000.
func BenchmarkWrite(b *testing.B) {
	dir := *keep
	if dir == "" {
		dir = b.TempDir()
	}
	path := filepath.Join(dir, "long.gmt")
	training(b, path, *events)
	b.ResetTimer()
	for b.Loop() {
		f, err := os.Create(filepath.Join(dir, "long.html"))
		if err != nil {
			b.Fatal(err)
		}
		if _, _, err := Write(f, path, whole); err != nil {
			b.Fatal(err)
		}
		size, err := f.Seek(0, 1)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(size), "bytes-of-page")
		if err := f.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
