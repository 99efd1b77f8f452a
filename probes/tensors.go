package probes

import (
	"encoding/binary"
	"fmt"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	records "github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// maxSamples bounds the sampled tensors, not freed yet, whose ends are told, over all
// processes. One takes the kernel about 100 bytes.
const maxSamples = 1 << 18

// MaxTensorSample is the largest TensorSample, in bytes.
const MaxTensorSample = 1 << 30

// TensorOptions say which tensors are told. What is not is in the sums of Allocators.
type TensorOptions struct {
	// TensorSample is how many bytes lie between two that are sampled, in the mean: the
	// tensors that have one are told. 0 is all tensors, MaxTensorSample the most.
	TensorSample uint64
	// TensorMin: tensors of fewer bytes are not told.
	TensorMin uint64
}

// Partial tells whether there may be tensors that are not told.
func (o TensorOptions) Partial() bool { return o.TensorSample != 0 || o.TensorMin != 0 }

// An allocatorKey and an allocatorSums mirror struct gm_allocator_key and
// struct gm_allocator.
type allocatorKey struct {
	Start  uint64
	PID    uint32
	Device int32
}

type allocatorSums struct {
	Allocated, Reserved uint64
	Made, Freed         [2]records.Tally
}

// Allocators returns what the kernel side knows of caching allocators, in no order.
// There are none unless Options.Tensors and TensorOptions.Partial. It costs a few system
// calls for each.
func (t *Tracer) Allocators() ([]records.Allocator, error) {
	if !t.opts.Tensors || !t.opts.Partial() {
		return nil, nil
	}
	var out []records.Allocator
	var key allocatorKey
	var x allocatorSums
	all := t.coll.Maps["allocators"].Iterate()
	for all.Next(&key, &x) {
		out = append(out, records.Allocator{
			Process: process(key.PID, key.Start), Device: max(key.Device, event.NoDevice),
			Allocated: x.Allocated, Reserved: x.Reserved,
			Made: x.Made[0], Freed: x.Freed[0], SmallMade: x.Made[1], SmallFreed: x.Freed[1],
		})
	}
	if err := all.Err(); err != nil {
		return out, fmt.Errorf("read what allocators hold: %w", err)
	}
	return out, nil
}

// ForgetTensors drops what the kernel side keeps of the tensors of a process that has
// ended, or replaced its image.
func (t *Tracer) ForgetTensors(id event.Process) {
	if !t.opts.Tensors || !t.opts.Partial() {
		return
	}
	le := binary.LittleEndian
	// Of both maps a key begins with the process's start.
	for name, pid := range map[string]int{"allocators": 8, "samples": 16} {
		m := t.coll.Maps[name]
		key := make([]byte, m.KeySize())
		value := make([]byte, m.ValueSize())
		var gone [][]byte
		for all := m.Iterate(); all.Next(&key, &value); {
			if process(le.Uint32(key[pid:]), le.Uint64(key)) == id {
				gone = append(gone, append([]byte(nil), key...))
			}
		}
		for _, key := range gone {
			_ = m.Delete(key) // freed meanwhile
		}
	}
}
