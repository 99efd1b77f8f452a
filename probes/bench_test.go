package probes

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/testcuda"
)

// BenchmarkProbe measures what the probes add to one call, the stack by frame
// pointers included: the same process with and without them, in turn.
func BenchmarkProbe(b *testing.B) {
	const rounds = 20000
	p := start(b, testcuda.Workload, testcuda.Options{})
	run(b, p, "init")
	once := func() time.Duration {
		begin := time.Now()
		run(b, p, fmt.Sprintf("repeat %d { cuMemAlloc_v2 512; cuMemFree_v2 }", rounds))
		return time.Since(begin) / (2 * rounds)
	}
	once()
	var with, without []time.Duration
	for b.Loop() {
		without = append(without, once())
		tr := traced(b, p, Options{})
		done := make(chan error)
		go func() { done <- tr.Run(counter{}, nil) }()
		with = append(with, once())
		if err := tr.Stop(); err != nil {
			b.Fatal(err)
		}
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
	median := func(d []time.Duration) float64 {
		slices.Sort(d)
		return float64(d[len(d)/2])
	}
	b.ReportMetric(median(without), "ns/call-without")
	b.ReportMetric(median(with)-median(without), "ns/call-added")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkAttach measures how long a process waits for its first event: the
// library's symbols are read, and each gets two probes.
func BenchmarkAttach(b *testing.B) {
	p := start(b, testcuda.Workload, testcuda.Options{})
	for b.Loop() {
		tr, err := Open(Options{})
		if err != nil {
			b.Fatal(err)
		}
		begin := time.Now()
		if _, err := tr.Target(p.PID()); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(time.Since(begin).Microseconds())/1000, "ms/target")
		if err := tr.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
