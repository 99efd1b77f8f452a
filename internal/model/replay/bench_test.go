package replay

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
)

// recorded records a training job of n events, and returns the file and how
// long the trace took.
func recordedJob(b *testing.B, n int) (path string, took time.Duration) {
	b.Helper()
	path = filepath.Join(b.TempDir(), "recording")
	w := recordtest.Create(b, path)
	job := &recordtest.Training{Stacks: 500, Depth: 40, Live: 10_000, Pieces: 2_500}
	job.Begin(w.Append)
	var first, last uint64
	for i := 0; i < n; {
		r := job.Next()
		w.Append(r)
		if e, ok := r.(*event.Event); ok {
			if i++; first == 0 {
				first = e.Time
			}
			last = e.Time
		}
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	for _, c := range w.Loss() {
		if c.Value != 0 {
			b.Fatalf("%s = %d", c.Name, c.Value)
		}
	}
	return path, time.Duration(last - first)
}

// BenchmarkPlay plays a training job, whole and its first half.
func BenchmarkPlay(b *testing.B) {
	const events = 1 << 20
	path, took := recordedJob(b, events)
	for _, c := range []struct {
		name string
		at   time.Duration
		want uint64 // events, at least
	}{{"whole", End, events}, {"half", took / 2, events/2 - 1<<13}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			n := uint64(0)
			for b.Loop() {
				s, err := Play(path, Options{At: c.at})
				if err != nil {
					b.Fatal(err)
				}
				got := s.View(state.Want{}).Snapshot().Meta.Events
				if got < c.want || got > c.want+1<<13 {
					b.Fatalf("%d events, want %d", got, c.want)
				}
				n += got
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
		})
	}
}
