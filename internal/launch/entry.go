package launch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"
)

// runToEntry lets a process that stopped at execve run its dynamic linker, to
// the program's entry point, by a breakpoint that is gone when it returns. It
// must be called from the thread that traces the process.
func runToEntry(pid int) error {
	entry, ok := entryPoint(pid)
	if !ok {
		return nil
	}
	original := make([]byte, len(breakpoint))
	if _, err := syscall.PtracePeekText(pid, entry, original); err != nil {
		return nil // not mapped: hold it where it is
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

// entryPoint reads AT_ENTRY of the auxiliary vector (getauxval(3)): pairs of
// words, ended by AT_NULL.
func entryPoint(pid int) (uintptr, bool) {
	const atEntry, word = 9, 8
	auxv, err := os.ReadFile(fmt.Sprintf("/proc/%d/auxv", pid))
	if err != nil {
		return 0, false
	}
	for ; len(auxv) >= 2*word; auxv = auxv[2*word:] {
		if binary.NativeEndian.Uint64(auxv) == atEntry {
			return uintptr(binary.NativeEndian.Uint64(auxv[word:])), true
		}
	}
	return 0, false
}
