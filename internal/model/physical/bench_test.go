package physical

import (
	"math/rand/v2"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
)

// BenchmarkApply has a process of 100,000 live objects of memory, from a thousand
// stacks, that end in random order.
func BenchmarkApply(b *testing.B) {
	const objects = 100_000
	r := rand.New(rand.NewPCG(1, 1))
	l := run()
	h := func(i int) uint64 { return client>>32<<32 | 0x10000000 + uint64(i) }
	now := uint64(10)
	take := func(i int) {
		now++
		apply(l, makeMemory(now, h(i), 2*mib, in(inAlloc), stack(1+r.Uint64N(1000))))
	}
	for i := range objects {
		take(i)
	}
	b.ReportAllocs()
	for b.Loop() {
		i := r.IntN(objects)
		now++
		apply(l, end(now, h(i)))
		take(i)
	}
	b.ReportMetric(2*float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkFreeClient ends a client with 100,000 objects of memory at once.
func BenchmarkFreeClient(b *testing.B) {
	const objects = 100_000
	var events []*event.Event
	for i := range uint64(objects) {
		events = append(events, makeMemory(10, client>>32<<32|0x10000000+i, 2*mib, stack(i%1000)))
	}
	for b.Loop() {
		b.StopTimer()
		l := New(ledger.Options{})
		apply(l, begun(client, 6, proc)...)
		apply(l, events...)
		b.StartTimer()
		apply(l, end(11, client))
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/objects, "ns/object")
}

// BenchmarkKeyframe yields 100,000 live objects.
func BenchmarkKeyframe(b *testing.B) {
	l := run()
	for i := range uint64(100_000) {
		apply(l, makeMemory(10, client>>32<<32|0x10000000+i, 2*mib, stack(i%1000)))
	}
	for b.Loop() {
		written(l)
	}
}
