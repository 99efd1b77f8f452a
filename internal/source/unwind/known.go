package unwind

import (
	"errors"
	"fmt"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// struct unwind_process of bpf/unwind_memo.h.
type knownProcess struct {
	Mappings, TLSKey   uint32
	Counter, Uncounted uint64
	ModuleCall         uint64
}

// knownProcesses is the map unwind_processes. The kernel side writes the key to it
// and what it does not count, and finds both again when they were overwritten.
type knownProcesses struct {
	kernel *ebpf.Map

	mu          sync.Mutex // held by writers
	generation  uint32     // the latest of any process's mappings; none is used twice
	moduleCalls map[int]moduleCall
	counters    map[int]uint64 // addresses, see codeCounter
}

// restartMemo empties a process's part of the memo: its mappings changed, or stacks that
// the memo names were dropped.
func (k *knownProcesses) restartMemo(pid int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.put(pid, k.moduleCalls[pid], ebpf.UpdateAny); err != nil {
		return fmt.Errorf("flush stack memo: %w", err)
	}
	return nil
}

func (k *knownProcesses) put(pid int, call moduleCall, how ebpf.MapUpdateFlags) error {
	k.generation++
	return k.kernel.Update(uint32(pid), knownProcess{Mappings: k.generation, Counter: k.counters[pid], ModuleCall: call.object}, how)
}

// counts notes where a process counts its code objects. The analysis ends with restartMemo.
func (k *knownProcesses) counts(pid int, address uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.counters == nil {
		k.counters = map[int]uint64{}
	}
	k.counters[pid] = address
}

// wantsModuleCall reports whether call is another one than what is known for a process, and no
// worse.
func (k *knownProcesses) wantsModuleCall(pid int, call moduleCall) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	before := k.moduleCalls[pid]
	return call != before && !before.better(call)
}

// callsModules makes the stacks of a process have the modules which call runs for. The first
// analysis of a process may be about to end: restartMemo then does it.
func (k *knownProcesses) callsModules(pid int, call moduleCall) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.put(pid, call, ebpf.UpdateExist) != nil && proc.Ended(pid) {
		return
	}
	if k.moduleCalls == nil {
		k.moduleCalls = map[int]moduleCall{}
	}
	k.moduleCalls[pid] = call
}

// forget removes a process, which has no memo then.
func (k *knownProcesses) forget(pid int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.moduleCalls, pid)
	delete(k.counters, pid)
	err := k.kernel.Delete(uint32(pid))
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}
