package state

import (
	"path/filepath"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
)

const benchLive = 1_000_000

// BenchmarkApply is a training job's records: an event in an op.
func BenchmarkApply(b *testing.B) {
	job := &recordtest.Training{Stacks: 500, Depth: 40, Live: 10_000, Pieces: 2_500}
	s := New()
	job.Begin(s.Apply)
	const chunk = 1 << 16
	events := make([]event.Event, 0, chunk)
	records := make([]record.Record, 0, 2*chunk)
	refill := func() {
		events, records = events[:0], records[:0]
		for len(events) < chunk {
			r := job.Next()
			if e, ok := r.(*event.Event); ok {
				events = append(events, *e)
				r = &events[len(events)-1]
			}
			records = append(records, r)
		}
	}
	b.ReportAllocs()
	next, n := 0, 0
	for b.Loop() {
		for told := false; !told; next++ {
			if next == len(records) {
				b.StopTimer()
				refill()
				next = 0
				b.StartTimer()
			}
			s.Apply(records[next])
			_, told = records[next].(*event.Event)
		}
		n++
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
	if s.events != uint64(n) {
		b.Fatalf("%d events, %d applied", s.events, n)
	}
	for _, c := range s.loss() {
		if c.Value != 0 {
			b.Errorf("%s = %d", c.Name, c.Value)
		}
	}
}

// full is the state of a training job with benchLive live allocations of 5,000
// call sites of 40 frames.
func full(b *testing.B) *State {
	b.Helper()
	job := &recordtest.Training{Stacks: 2500, Depth: 40, Live: 2 * benchLive, Pieces: 2 * benchLive}
	s := New()
	job.Begin(s.Apply)
	for live := 0; live < benchLive; {
		r := job.Next()
		if e, ok := r.(*event.Event); ok && (e.Op == event.OpAlloc || e.Op == event.OpHandleCreate) {
			live++
		}
		s.Apply(r)
	}
	return s
}

// BenchmarkView is the part of a snapshot that a tracer's lock is held for.
func BenchmarkView(b *testing.B) {
	s := full(b)
	for b.Loop() {
		s.View(Want{Live: true})
	}
}

func BenchmarkSnapshot(b *testing.B) {
	s := full(b)
	b.ReportAllocs()
	for b.Loop() {
		if out := s.View(Want{Live: true}).Snapshot(); len(out.Live) != benchLive || len(out.Samples) != 5000 {
			b.Fatal(len(out.Live), len(out.Samples))
		}
	}
}

// BenchmarkKeyframe is what a recording holds the tracer's lock for when it drops
// its beginning: the records alone, and with their way into the file.
func BenchmarkKeyframe(b *testing.B) {
	s := full(b)
	b.Run("records", func(b *testing.B) {
		for b.Loop() {
			n := 0
			s.Keyframe(func(record.Record) { n++ })
			if n == 0 {
				b.Fatal(n)
			}
		}
	})
	b.Run("recorded", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			w := recordtest.Create(b, filepath.Join(b.TempDir(), "recording"))
			b.StartTimer()
			s.Keyframe(w.Append)
			b.StopTimer()
			if err := w.Close(); err != nil {
				b.Fatal(err)
			}
			for _, c := range w.Loss() {
				if c.Value != 0 {
					b.Fatalf("%s = %d", c.Name, c.Value)
				}
			}
			b.StartTimer()
		}
	})
}

// BenchmarkTotals is what a scrape of totals asks for.
func BenchmarkTotals(b *testing.B) {
	s := full(b)
	for b.Loop() {
		live := int64(0)
		for _, p := range s.Processes() {
			live += p.LiveObjects
		}
		if live != benchLive {
			b.Fatal(live)
		}
	}
}
