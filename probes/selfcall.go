package probes

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// selfRow is the function that CallSelf's calls are taken for.
const selfRow = "cuMemAlloc_v2"

// CallSelf makes calls in this process that the kernel side takes for allocations
// which fail, each of size bytes and of the same stack: they go through the probes, the
// programs and the ring buffer as any other's, to Run's handler. Nothing else of this
// process is traced. Close ends it.
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
	if err := t.newTarget(pid); err != nil {
		return err
	}
	a := attachment{library: Library{Path: "this program"}} // without a gate
	err = a.attach(self.Link(), t.progs, []point{{entry: uint16(row), offset: offset, at: offset}}, pid)
	if err == nil {
		// The kernel puts another return address on the stack. The function has no
		// frame, nor a place where Go would look at the stack.
		runtime.LockOSThread()
		for range calls {
			callSelf(size)
		}
		runtime.UnlockOSThread()
	}
	return errors.Join(err, a.detach(), t.coll.Maps["targets"].Delete(uint32(pid)))
}

func callSelf(size uint64)
func selfAddress() uintptr
