package probes

import (
	"math"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"github.com/gpumemtrace/gpumemtrace/internal/source/clock"
)

// Probes go on and off one after the other. Meanwhile allocations might be seen
// and their frees not, or the other way round; a gate keeps all of that out: the
// kernel side tells of calls that were entered when it was open (gates in
// bpf/gpumemtrace.h), and both steps of it are one write.

// gates are those of a tracer's attachments.
type gates struct {
	times *ebpf.Map // by slot: the time from which on calls count

	mu   sync.Mutex
	used uint16 // slots that have been given out, of which some are free
	free []uint16
}

// take returns a gate in any state, or nil if there is none left.
func (g *gates) take() *gate {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := len(g.free); n > 0 {
		slot := g.free[n-1]
		g.free = g.free[:n-1]
		return &gate{g, slot}
	}
	if uint32(g.used)+1 >= g.times.MaxEntries() { // slot 0 is always open
		return nil
	}
	g.used++
	return &gate{g, g.used}
}

// A gate is one slot. nil is a gate that is always open.
type gate struct {
	of    *gates
	index uint16
}

func (g *gate) slot() uint16 {
	if g == nil {
		return 0
	}
	return g.index
}

// open lets through the calls that are entered from the time on that it returns.
func (g *gate) open() (time.Duration, error) {
	at := clock.Monotonic()
	return at, g.set(uint64(at))
}

// shut lets nothing through: no call that ends later counts.
func (g *gate) shut() error { return g.set(math.MaxUint64) }

func (g *gate) set(from uint64) error {
	if g == nil {
		return nil
	}
	return g.of.times.Put(uint32(g.index), from)
}

// release gives the slot to others. No probe may go by it any more.
func (g *gate) release() {
	if g == nil {
		return
	}
	g.of.mu.Lock()
	defer g.of.mu.Unlock()
	g.of.free = append(g.of.free, g.index)
}
