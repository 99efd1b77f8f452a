package server

import (
	"io"
	"net/http"
	"runtime"
	"sync"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
)

// crowded is the trace of 500 processes with a million live allocations of ten thousand
// call sites of 40 frames.
func crowded() *held {
	h := &held{state: state.New()}
	recordtest.Crowd(500, 2000, 20, h.state.Apply)
	return h
}

// BenchmarkScrape is one request for each of what programs and the page ask for again and
// again: as the first one sees it, of a trace that changed meanwhile, and then as a hundred
// at once do.
func BenchmarkScrape(b *testing.B) {
	h := crowded()
	s := serve(b, Options{Source: h})
	s.client.Transport.(*http.Transport).MaxIdleConnsPerHost = 100
	ask := func(b *testing.B, path string) {
		r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, s.url+path, http.NoBody)
		if err != nil {
			b.Fatal(err)
		}
		r.Header.Set("Accept-Encoding", "gzip")
		answer, err := s.client.Do(r)
		if err != nil {
			b.Fatal(err)
		}
		defer answer.Body.Close()
		n, err := io.Copy(io.Discard, answer.Body)
		if answer.StatusCode != http.StatusOK || err != nil || n == 0 {
			b.Fatal(answer.Status, err)
		}
		b.ReportMetric(float64(n), "bytes")
	}
	for _, path := range []string{"/debug/pprof/gpumem", "/debug/pprof/gpumem?pid=1000", "/api/v1/top", "/api/v1/look", "/api/v1/history", "/api/v1/events"} {
		b.Run(path, func(b *testing.B) {
			for b.Loop() {
				s.looks.forget()
				ask(b, path)
			}
		})
	}
	b.Run("fifty at once", func(b *testing.B) {
		for b.Loop() {
			s.looks.forget()
			var all sync.WaitGroup
			for range 50 {
				all.Go(func() { ask(b, "/debug/pprof/gpumem") })
			}
			all.Wait()
		}
	})
	b.Run("locked", func(b *testing.B) {
		for b.Loop() {
			h.View(state.Want{Driver: true, GPUs: true})
		}
	})
	s.looks.forget()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.Logf("heap with the trace: %d MiB", m.HeapAlloc>>20)
}
