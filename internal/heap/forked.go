package heap

import (
	"fmt"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// driverFile is what each process with CUDA maps, and what is not mapped in a process that it forks.
const driverFile = "/dev/nvidia-uvm"

// maxForks bounds the ancestors that are looked at. Each may have a large table of mappings.
const maxForks = 8

// forkedFrom returns the ancestor whose GPU memory the objects of a process stand for: CUDA does not work in a process
// that was forked after CUDA began, but its heap is a copy. It is 0 if there is none.
func forkedFrom(pid int) int {
	if proc.Maps(pid, driverFile) {
		return 0
	}
	at := proc.Random(pid)
	random := func(pid int) [16]byte {
		var b [16]byte
		if n, err := processMemory(pid).ReadAt(b[:], at); err != nil || n < len(b) {
			return [16]byte{}
		}
		return b
	}
	own := random(pid)
	for range maxForks {
		parent, err := proc.Parent(pid)
		if err != nil || parent <= 0 || own == [16]byte{} || proc.Random(parent) != at || random(parent) != own {
			return 0
		}
		if proc.Maps(parent, driverFile) {
			return parent
		}
		pid = parent
	}
	return 0
}

// dropInherited leaves out GPU memory of the process that forked this one, and says so.
func dropInherited(pid int, reading *holder.Reading) {
	onGPU := func(s holder.Storage) bool { return !s.OnCPU() }
	if !slices.ContainsFunc(reading.Storages, onGPU) {
		return
	}
	if parent := forkedFrom(pid); parent != 0 {
		reading.Storages = slices.DeleteFunc(reading.Storages, onGPU)
		reading.Allocators, reading.Retainers, reading.Came = nil, nil, 0
		reading.NoAllocators = fmt.Sprintf("its tensors on GPUs are those of process %d, which forked it", parent)
	}
}
