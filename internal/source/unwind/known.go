package unwind

import (
	"errors"
	"fmt"
	"sync"

	"github.com/cilium/ebpf"
)

// struct unwind_process of bpf/unwind_memo.h.
type knownProcess struct{ Mappings, TLSKey, Watched, Freed, Image uint32 }

// knownProcesses is the map unwind_processes. The kernel side writes to it, too: what it
// counts meanwhile may be lost, and what it found out is found out again.
type knownProcesses struct {
	kernel *ebpf.Map

	mu         sync.Mutex // of who writes
	generation uint32     // the last one of any process's mappings: none is used twice
}

// get returns what is known of a process, false for nothing.
func (k *knownProcesses) get(pid int) (p knownProcess, ok bool) {
	return p, k.kernel.Lookup(uint32(pid), &p) == nil
}

// afresh starts a process's part of the memo afresh: its mappings changed, or stacks
// that the memo names were dropped.
func (k *knownProcesses) afresh(pid int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var p knownProcess
	if err := k.kernel.Lookup(uint32(pid), &p); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("flush stack memo: %w", err)
	}
	return k.put(pid, p, ebpf.UpdateAny)
}

// watch says whether all code objects that a known process frees are counted from here
// on, and starts its part of the memo afresh.
func (k *knownProcesses) watch(pid int, watched bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var p knownProcess
	if err := k.kernel.Lookup(uint32(pid), &p); err != nil {
		return fmt.Errorf("watch code objects: %w", err)
	}
	p.Watched = 0
	if watched {
		p.Watched = 1
	}
	return k.put(pid, p, ebpf.UpdateExist)
}

func (k *knownProcesses) put(pid int, p knownProcess, flags ebpf.MapUpdateFlags) error {
	k.generation++
	p.Mappings, p.TLSKey = k.generation, 0
	if err := k.kernel.Update(uint32(pid), p, flags); err != nil {
		return fmt.Errorf("flush stack memo: %w", err)
	}
	return nil
}

// forget leaves a process without a memo.
func (k *knownProcesses) forget(pid int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	err := k.kernel.Delete(uint32(pid))
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}
