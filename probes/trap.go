package probes

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// TrapCost measures the cost of a uprobe whose program only counts: the least mean of several rounds, in about
// 0.1 s. The probed instruction addresses memory relative to itself, as the first one of libcuda's functions does,
// so that the kernel cannot emulate it. The function is this program's own, and only TrapCost calls it.
func TrapCost() (cost time.Duration, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("measure a probe: %w", err)
		}
	}()
	const rounds, calls = 20, 200
	least := func() time.Duration {
		best := time.Duration(1<<63 - 1)
		for range rounds {
			begin := time.Now()
			for range calls {
				trapped()
			}
			best = min(best, time.Since(begin))
		}
		return best / calls
	}
	without := least()

	counter, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		return 0, err
	}
	defer counter.Close()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.Kprobe, License: "GPL", Instructions: asm.Instructions{
		asm.LoadMapValue(asm.R1, counter.FD(), 0),
		asm.Mov.Imm(asm.R2, 1),
		asm.StoreXAdd(asm.R1, asm.R2, asm.DWord),
		asm.Mov.Imm(asm.R0, 0),
		asm.Return(),
	}})
	if err != nil {
		return 0, err
	}
	defer prog.Close()
	offset, err := fileOffset(uint64(reflect.ValueOf(trapped).Pointer()))
	if err != nil {
		return 0, err
	}
	self, _, err := proc.OpenExecutable(os.Getpid())
	if err != nil {
		return 0, err
	}
	defer self.Close()
	exe, err := link.OpenExecutable(self.Link())
	if err != nil {
		return 0, err
	}
	probe, err := exe.Uprobe("", prog, &link.UprobeOptions{Address: offset, PID: os.Getpid()})
	if err != nil {
		return 0, err
	}
	with := least()
	if err := probe.Close(); err != nil {
		return 0, err
	}
	var hits uint64
	if err := counter.Lookup(uint32(0), &hits); err != nil {
		return 0, err
	}
	if hits < rounds*calls { // a call that had to grow the stack begins again, and counts twice
		return 0, fmt.Errorf("it saw %d of %d calls", hits, rounds*calls)
	}
	return with - without, nil
}

// trapped is the probed function. It begins by reading a variable.
//
//go:noinline
func trapped() int { return len(Entries) }

// fileOffset returns the file offset of an address in this process's code.
func fileOffset(address uint64) (uint64, error) {
	for m, err := range proc.Mappings(os.Getpid()) {
		if err != nil {
			return 0, err
		}
		if m.Holds(address) {
			return address - m.Start + m.Offset, nil
		}
	}
	return 0, errors.New("no mapping of the probed function")
}
