package leak

import (
	"fmt"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

// sites returns a snapshot of n stacks of 40 frames, half of them Python's.
func sites(n int) *snapshot.Snapshot {
	s := &snapshot.Snapshot{Meta: snapshot.Meta{Start: snapshottest.Start}}
	for i := range n {
		sample := snapshot.Sample{
			Labels: snapshot.Labels{Kind: "device", API: "cuMemAlloc_v2", GPU: "0", Owner: "pytorch", Process: "python3", PID: 4711},
			Values: snapshot.Values{InuseBytes: 1, InuseObjects: 1},
		}
		for f := range 20 {
			sample.Stack = append(sample.Stack,
				&snapshot.Location{Address: uint64(0x7f0000000000 + i<<12 + f), Lines: []snapshot.Line{{Function: "c10::cuda::malloc"}}},
				snapshottest.Frame(fmt.Sprintf("forward_%d", i), "/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py", f))
		}
		s.Samples = append(s.Samples, sample)
	}
	return s
}

func BenchmarkObserve(b *testing.B) {
	s := sites(10_000)
	d := New(Options{})
	b.ReportAllocs()
	for b.Loop() {
		s.Meta.Duration += d.opts.Interval
		for i := range s.Samples {
			s.Samples[i].InuseBytes += int64(i % 2) // half of them grow
		}
		d.Observe(moment(s), held(s))
	}
}

func held(s *snapshot.Snapshot) func(func(state.SiteUsage) bool) {
	return func(yield func(state.SiteUsage) bool) {
		for i := range s.Samples {
			if !yield(state.SiteUsage{Site: siteKey(i), Bytes: s.Samples[i].InuseBytes, Objects: s.Samples[i].InuseObjects}) {
				return
			}
		}
	}
}

func keys(n int) func(func(ledger.SiteKey) bool) {
	return func(yield func(ledger.SiteKey) bool) {
		for i := range n {
			if !yield(siteKey(i)) {
				return
			}
		}
	}
}

// A million live allocations at 10,000 stacks, half of which leak.
func BenchmarkReport(b *testing.B) {
	s := sites(10_000)
	d := New(Options{})
	for range 10 {
		s.Meta.Duration += d.opts.Interval
		for i := range s.Samples {
			s.Samples[i].InuseBytes += int64(i % 2)
		}
		d.Observe(moment(s), held(s))
	}
	for i := range 1_000_000 {
		s.Live = append(s.Live, snapshot.Allocation{
			Sample: i % len(s.Samples), Size: 1,
			Time: s.Meta.Start.Add(time.Duration(i) * s.Meta.Duration / 1_000_000),
		})
	}
	b.ReportAllocs()
	for b.Loop() {
		if r := d.Report(s, keys(len(s.Samples))); len(r.Stacks) != 5000 {
			b.Fatalf("%d stacks leak, want 5000", len(r.Stacks))
		}
	}
}
