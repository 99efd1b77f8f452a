package probes

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// selfRow is the function that CallSelf imitates.
const selfRow = "cuMemAlloc_v2"

// CallSelf makes calls in this process that look like failed allocations of size bytes, with the
// same stack. They pass the probes, the programs and the ring buffer like others, to Run's
// Handler. Nothing else of this process is traced.
func (t *Tracer) CallSelf(calls int, size uint64) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("trace a call of this process: %w", err)
		}
	}()
	if err := CheckSeccomp(os.Getpid(), true); err != nil {
		return err
	}
	row := slices.IndexFunc(Entries, func(e Entry) bool { return e.Symbol == selfRow })
	offset, err := fileOffset(uint64(selfAddress()))
	if err != nil {
		return err
	}
	self, _, err := proc.OpenExecutable(os.Getpid())
	if err != nil {
		return err
	}
	defer self.Close()
	pid := os.Getpid()
	if err := t.targets.add(pid, uint32(os.Geteuid())); err != nil {
		return err
	}
	a := attachment{library: Library{Path: "this program"}} // without a gate
	err = a.attach(self.Link(), t.kernel.progs, []point{{entry: uint16(row), offset: offset, at: offset}}, pid)
	if err == nil {
		// The kernel replaces the return address on the stack. So the function has no
		// frame, and no point at which Go would inspect the stack.
		runtime.LockOSThread()
		for range calls {
			callSelf(size)
		}
		runtime.UnlockOSThread()
	}
	return errors.Join(err, a.detach(), t.targets.remove(pid))
}

func callSelf(size uint64)
func selfAddress() uintptr
