package probes

import (
	"encoding/binary"
	"fmt"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	records "github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// maxSamples bounds the live tensors in the sample, of all processes. One costs the kernel about
// 100 bytes.
const maxSamples = 1 << 18

// MaxTensorSample is the largest TensorSample.
const MaxTensorSample = 1 << 30

// TensorOptions select the tensors to report. Allocators counts the others too.
type TensorOptions struct {
	// TensorSample is the mean distance in bytes between two sampled bytes, at most
	// MaxTensorSample. The tracer reports the tensors that contain one. 0: it reports all.
	TensorSample uint64
}

// Partial reports whether the tracer leaves tensors out.
func (o TensorOptions) Partial() bool { return o.TensorSample != 0 }

// An allocatorKey and an allocatorSums mirror struct gm_allocator_key and
// struct gm_allocator.
type allocatorKey struct {
	Start  uint64
	PID    uint32
	Device int32
}

type allocatorSums struct {
	Allocated, Reserved uint64
	Made, Freed         records.Tally
}

// Allocators returns the totals of the caching allocators, in no order. The kernel side has them
// if Options.Tensors and TensorOptions.Partial are set. Each costs a few system calls.
func (t *Tracer) Allocators() ([]records.Allocator, error) {
	if !t.opts.Tensors || !t.opts.Partial() {
		return nil, nil
	}
	var out []records.Allocator
	var key allocatorKey
	var x allocatorSums
	all := t.kernel.coll.Maps["allocators"].Iterate()
	for all.Next(&key, &x) {
		out = append(out, records.Allocator{
			Process: process(key.PID, key.Start), Device: max(key.Device, event.NoDevice),
			Allocated: x.Allocated, Reserved: x.Reserved,
			Made: x.Made, Freed: x.Freed,
		})
	}
	if err := all.Err(); err != nil {
		return out, fmt.Errorf("read what allocators hold: %w", err)
	}
	return out, nil
}

// ForgetTensors removes the kernel side's data on the tensors of a process that has ended, or
// replaced its image.
func (t *Tracer) ForgetTensors(id event.Process) {
	if !t.opts.Tensors || !t.opts.Partial() {
		return
	}
	le := binary.LittleEndian
	// The keys of both maps begin with the process's start.
	for name, pid := range map[string]int{"allocators": 8, "samples": 16} {
		m := t.kernel.coll.Maps[name]
		key := make([]byte, m.KeySize())
		value := make([]byte, m.ValueSize())
		var gone [][]byte
		for all := m.Iterate(); all.Next(&key, &value); {
			if process(le.Uint32(key[pid:]), le.Uint64(key)) == id {
				gone = append(gone, append([]byte(nil), key...))
			}
		}
		for _, key := range gone {
			_ = m.Delete(key) // it may be freed
		}
	}
}
