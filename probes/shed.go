package probes

import (
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/clock"
	"github.com/gpumemtrace/gpumemtrace/internal/event"
)

// A Shed says of which calls no stack is taken, to take less of the traced programs'
// time and of the tracer's. What is counted stays the same: each call is an event.
type Shed uint8

// From one to the next more is shed.
const (
	ShedNothing Shed = iota
	ShedTensors      // of what PyTorch's caching allocator hands out
	ShedAll          // of every call
	numShed
)

// takes tells whether a stack is taken where a row has one.
func (s Shed) takes(r *Row) bool {
	return s == ShedNothing || s == ShedTensors && r.class != classTensor
}

// A shedding is which Shed there is, and what there was before the time at which the
// kernel side had all of it.
type shedding struct {
	now, before Shed
	since       uint64
}

// shedInFlight is more than a call that returns takes from reading its row to its time.
const shedInFlight = 10 * time.Millisecond

// Shed sets it, from the next calls on. It is for one goroutine.
func (t *Tracer) Shed(s Shed) error {
	if s >= numShed {
		return fmt.Errorf("shed %d: there is no such step", s)
	}
	before := t.shedding.Load().now
	// While rows change, and of events that were on their way then, both may be.
	t.shedding.Store(&shedding{max(s, before), max(s, before), 0})
	rows := t.coll.Maps["rows"]
	for i := range Entries {
		r := Entries[i].Row
		if r.flags&flagStack == 0 || s.takes(r) == before.takes(r) {
			continue
		}
		k := r.plan.kernelRow(t.class(i), runtime.GOARCH)
		if !s.takes(r) {
			k.Flags &^= uint16(flagStack)
		}
		if err := rows.Put(uint32(i), k); err != nil {
			return fmt.Errorf("change which calls have stacks: %w", err)
		}
	}
	t.shedding.Store(&shedding{s, max(s, before), uint64(clock.Monotonic() + shedInFlight)})
	return nil
}

// class is what the i-th of Entries is to the kernel side.
func (t *Tracer) class(i int) class {
	if Entries[i].Level == Runtime && t.opts.API == APIBoth {
		return classAround
	}
	return Entries[i].class
}

// allocations are the events that tell of memory that came.
var allocations = []event.Op{event.OpAlloc, event.OpOpen, event.OpHandleCreate, event.OpHandleImport, event.OpObjectMemory}

// countShed counts an event without a stack that would have one.
func (t *Tracer) countShed(e *event.Event) {
	x := t.shedding.Load()
	s := x.now
	if e.Time <= x.since {
		s = x.before
	}
	if s != ShedNothing && e.Stack == 0 && slices.Contains(allocations, e.Op) && !s.takes(Entries[e.API].Row) {
		t.loss.Add(lossShed, 1)
	}
}
