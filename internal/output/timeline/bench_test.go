package timeline

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

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
	for range n {
		w.Append(job.Next())
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

// BenchmarkOpen opens the page of a long recording in a browser, whole and reduced.
func BenchmarkOpen(b *testing.B) {
	path := filepath.Join(b.TempDir(), "long.gmt")
	training(b, path, *events)
	for _, deltas := range []int{0, min(*events/2, 1_000_000)} {
		b.Run(fmt.Sprintf("deltas=%d", deltas), func(b *testing.B) {
			o := whole
			o.deltas = deltas
			var html bytes.Buffer
			if _, _, err := Write(&html, path, o); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				ms, err := strconv.ParseFloat(open(b, html.Bytes(), 1300, 900).Ask("document.documentElement.dataset.ready"), 64)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(ms, "ms-to-ready")
			}
		})
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
