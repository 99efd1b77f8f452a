package unwind

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync"

	"github.com/cilium/ebpf"
	"go.opentelemetry.io/ebpf-profiler/host"
	"go.opentelemetry.io/ebpf-profiler/processmanager/ebpfapi"
	"go.opentelemetry.io/ebpf-profiler/support"
	"golang.org/x/sys/unix"
)

// tables is how the unwinder's Go side writes its maps. Unwind tables are
// written by itself: the unwinder's own way raises RLIMIT_MEMLOCK, and does not
// tell when a table can be used.
type tables struct {
	ebpfapi.EbpfHandler
	kernel *kernel

	pending sync.WaitGroup
	mu      sync.Mutex
	err     error
}

// UpdateExeIDToStackDeltas implements ebpfapi.EbpfHandler: it writes the unwind
// table of an executable and returns which map holds it. wait tells when it is
// there: the kernel lets it be seen only after all CPUs have passed by, which
// takes tens of milliseconds.
func (t *tables) UpdateExeIDToStackDeltas(file host.FileID, deltas []ebpfapi.StackDeltaEBPF) (uint16, error) {
	size := max(bits.Len32(uint32(len(deltas))), support.StackDeltaBucketSmallest)
	outer := t.outer(uint16(size))
	if outer == nil {
		return 0, fmt.Errorf("unwind table of %d entries is too large", len(deltas))
	}
	spec := t.kernel.deltas.Copy()
	spec.Name = "unwind_table"
	spec.MaxEntries = 1 << size
	inner, err := ebpf.NewMap(spec)
	if err != nil {
		return 0, fmt.Errorf("make unwind table: %w", err)
	}
	if err := fill(inner, deltas); err != nil {
		inner.Close()
		return 0, fmt.Errorf("write unwind table: %w", err)
	}
	t.pending.Go(func() {
		defer inner.Close()
		if err := outer.Put(uint64(file), inner); err != nil {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.err = errors.Join(t.err, fmt.Errorf("add unwind table: %w", err))
		}
	})
	return uint16(size), nil
}

// fill writes the array through memory: element by element the kernel would
// take longer than the analysis itself.
func fill(table *ebpf.Map, deltas []ebpfapi.StackDeltaEBPF) error {
	const stride = 8 // an array's elements are aligned
	page := os.Getpagesize()
	size := (int(table.MaxEntries())*stride + page - 1) / page * page
	memory, err := unix.Mmap(table.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	for i, d := range deltas { // struct StackDelta
		binary.NativeEndian.PutUint16(memory[i*stride:], d.AddressLow)
		binary.NativeEndian.PutUint16(memory[i*stride+2:], d.UnwindInfo)
	}
	return unix.Munmap(memory)
}

// DeleteExeIDToStackDeltas implements ebpfapi.EbpfHandler.
func (t *tables) DeleteExeIDToStackDeltas(file host.FileID, size uint16) error {
	outer := t.outer(size)
	if outer == nil {
		return fmt.Errorf("no unwind tables of size %d", size)
	}
	return outer.Delete(uint64(file))
}

// outer is the map of the tables of up to 1<<size entries.
func (t *tables) outer(size uint16) *ebpf.Map {
	return t.kernel.maps[fmt.Sprintf("exe_id_to_%d_stack_deltas", size)]
}

// wait returns when all tables can be used.
func (t *tables) wait() error {
	t.pending.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.err
	t.err = nil
	return err
}
