package launch

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"

	"github.com/gpumemtrace/gpumemtrace/internal/proc"
)

// breakpoint is the instruction that stops a program: int3, after which the program
// counter is one past it, and brk #0.
var breakpoint = map[string][]byte{"amd64": {0xcc}, "arm64": {0x00, 0x00, 0x20, 0xd4}}[runtime.GOARCH]

// runToEntry lets a process that stopped at execve run its dynamic linker, to
// the program's entry point, by a breakpoint that is gone when it returns. It
// must be called from the thread that traces the process.
func runToEntry(pid int) error {
	address, err := proc.EntryPoint(pid)
	if err != nil {
		return nil // not known: hold it where it is
	}
	entry := uintptr(address)
	original := make([]byte, len(breakpoint))
	if _, err := syscall.PtracePeekText(pid, entry, original); err != nil {
		return nil // not mapped
	}
	if _, err := syscall.PtracePokeText(pid, entry, breakpoint); err != nil {
		return nil
	}
	signal := 0
	for {
		if err := syscall.PtraceCont(pid, signal); err != nil {
			return fmt.Errorf("run to the entry point: %w", err)
		}
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil {
			return fmt.Errorf("run to the entry point: %w", err)
		}
		if !status.Stopped() {
			// The dynamic linker failed, and has said why on stderr.
			return errors.New("it ended before its program began")
		}
		if status.StopSignal() == syscall.SIGTRAP {
			break
		}
		signal = int(status.StopSignal()) // its own: deliver it
	}
	if _, err := syscall.PtracePokeText(pid, entry, original); err != nil {
		return fmt.Errorf("remove the breakpoint: %w", err)
	}
	var regs syscall.PtraceRegs
	if err := syscall.PtraceGetRegs(pid, &regs); err != nil {
		return fmt.Errorf("read registers: %w", err)
	}
	regs.SetPC(uint64(entry))
	if err := syscall.PtraceSetRegs(pid, &regs); err != nil {
		return fmt.Errorf("write registers: %w", err)
	}
	return nil
}
