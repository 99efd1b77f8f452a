package probes

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"

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

// BenchmarkPrograms measures what the programs take of a call that allocates, its
// stack by frame pointers included, and of one that frees, by the kernel's own
// statistics, which add some 20 ns to each.
func BenchmarkPrograms(b *testing.B) {
	const rounds = 20000
	p := start(b, testcuda.Workload, testcuda.Options{})
	run(b, p, "init")
	stats, err := ebpf.EnableStats(0)
	if err != nil {
		b.Fatal(err)
	}
	defer stats.Close()
	for _, symbol := range []string{"cuMemAlloc_v2", "cuMemFree_v2"} {
		b.Run(symbol, func(b *testing.B) {
			tr := openTrace(b, Options{})
			if err := tr.coll.Maps["targets"].Put(uint32(p.PID()), uint32(1)); err != nil {
				b.Fatal(err)
			}
			done := make(chan error)
			go func() { done <- tr.Run(counter{}, nil) }()
			a, err := attach(openLibrary(b, testcuda.Get(b).LibCUDA), tr.progs, nil, 0, func(r *Row) bool { return r.Symbols[0] == symbol })
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				run(b, p, fmt.Sprintf("repeat %d { cuMemAlloc_v2 512; cuMemFree_v2 }", rounds))
			}
			for metric, program := range map[string]*ebpf.Program{"ns/entry": tr.progs.enter, "ns/return": tr.progs.exit} {
				s, err := program.Stats()
				if err != nil || s.RunCount == 0 {
					b.Fatalf("%d runs: %v", s.RunCount, err)
				}
				b.ReportMetric(float64(s.Runtime.Nanoseconds())/float64(s.RunCount), metric)
			}
			b.ReportMetric(0, "ns/op")
			if err := errors.Join(a.detach(), tr.Stop(), <-done); err != nil {
				b.Fatal(err)
			}
		})
	}
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
