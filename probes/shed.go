package probes

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"

	"github.com/cilium/ebpf"

	"github.com/gpumemtrace/gpumemtrace/bpf"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// A Shed says of which calls of a process or a user no stack is taken, to take less of
// the traced programs' time and of the tracer's. What is counted stays the same: each call
// is an event. It is enum gm_shed of bpf/users.h.
type Shed uint8

// From one to the next more is shed.
const (
	ShedNothing Shed = iota
	ShedTensors      // of what PyTorch's caching allocator hands out
	ShedAll          // of every call: bpf.ShedAll
	numShed
)

// Shed sets it for a process, or for all processes of a user, now and later, from the next
// calls on. The more of the two counts for a process. The error is os.ErrNotExist for a
// process that is not traced, and for a user without one. It is for one goroutine.
func (t *Tracer) Shed(c Consumer, s Shed) error {
	if s >= numShed {
		return fmt.Errorf("shed %d: there is no such step", s)
	}
	if c.PID == 0 {
		place := noPlace
		if c.User != NoUser {
			if place = t.users.place(c.User, false); place == noPlace {
				return os.ErrNotExist
			}
		}
		atomic.StoreUint64(&t.users.Places[place].Shed, uint64(s))
		return nil
	}
	var x bpf.Target
	targets := t.coll.Maps["targets"]
	err := targets.Lookup(uint32(c.PID), &x)
	if err == nil {
		x.Shed = uint32(s) // what the process costs at this moment is not counted
		err = targets.Update(uint32(c.PID), x, ebpf.UpdateExist)
	}
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return os.ErrNotExist
	}
	if err != nil {
		return fmt.Errorf("change which calls of process %d have stacks: %w", c.PID, err)
	}
	return nil
}

// allocations are the events that tell of memory that came.
var allocations = []event.Op{event.OpAlloc, event.OpOpen, event.OpHandleCreate, event.OpHandleImport, event.OpObjectMemory}

// countShed counts an event without a stack that would have one.
func (t *Tracer) countShed(e *event.Event) {
	if slices.Contains(allocations, e.Op) {
		t.loss.Add(lossShed, 1)
	}
}
