package probes

import (
	"math"
	"sync"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/gpumemtrace/gpumemtrace/internal/source/clock"
)

// Probes go on and off one after the other. In that time the tracer could see an allocation and
// miss its free, or the other way round. So each library has a gate: the kernel side makes events
// only for calls that were entered while it was open (gates in bpf/table.h). One write opens or
// shuts it for all probes of the library.

// gates are the gates of a tracer.
type gates struct {
	times *ebpf.Map // by slot: a kernelGate

	mu   sync.Mutex
	used uint16   // slots in use, and free ones
	free []uint16 // slots
}

// get returns a gate in any state, nil if there is none left.
func (g *gates) get() *gate {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := len(g.free); n > 0 {
		slot := g.free[n-1]
		g.free = g.free[:n-1]
		return &gate{gates: g, index: slot}
	}
	if uint32(g.used)+1 >= g.times.MaxEntries() { // slot 0 is always open
		return nil
	}
	g.used++
	return &gate{gates: g, index: g.used}
}

// A gate is one slot. nil is a gate that is always open.
type gate struct {
	gates *gates
	index uint16
	code  extent // of the library
}

// An extent is a part of a file, in bytes.
type extent struct{ offset, size uint64 }

// A kernelGate mirrors gm_gate: the time from which on calls count (CLOCK_MONOTONIC, ns), and
// where the code of the gate's library is.
type kernelGate struct{ since, code, size uint64 }

func (g *gate) slot() uint16 {
	if g == nil {
		return 0
	}
	return g.index
}

// open opens the gate for calls that are entered from now on, and returns this time.
func (g *gate) open() (time.Duration, error) {
	at := clock.Monotonic()
	return at, g.set(uint64(at))
}

// shut shuts the gate: no call that returns later counts.
func (g *gate) shut() error { return g.set(math.MaxUint64) }

func (g *gate) set(from uint64) error {
	if g == nil {
		return nil
	}
	now := kernelGate{from, g.code.offset, g.code.size}
	return g.gates.times.Put(unsafe.Pointer(new(uint32(g.index))), unsafe.Pointer(&now))
}

// release frees the slot. No probe may use it any more.
func (g *gate) release() {
	if g == nil {
		return
	}
	g.gates.mu.Lock()
	defer g.gates.mu.Unlock()
	g.gates.free = append(g.gates.free, g.index)
}
