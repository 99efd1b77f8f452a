// Package launch starts a command and holds it before its program runs, so that the probes are on
// before its first call.
package launch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// A Command is a started program.
type Command struct {
	cmd     *exec.Cmd
	release func() error
}

// Streams are a command's standard streams. A nil one is the null device.
type Streams struct{ In, Out, Err *os.File }

// Hold starts argv with this process's environment, and stops it by ptrace(2) at its entry point.
// There the libraries that it links are mapped, and none of its own code has run. A program without a
// known entry point stops at its first instruction. Nothing stays attached after Release.
func Hold(argv []string, with Streams) (*Command, error) {
	released, detached := make(chan struct{}), make(chan error, 1)
	c := &Command{cmd: exec.Command(argv[0], argv[1:]...), release: sync.OnceValue(func() error {
		close(released)
		return <-detached
	})}
	if with.In != nil { // a nil *os.File is no nil interface
		c.cmd.Stdin = with.In
	}
	if with.Out != nil {
		c.cmd.Stdout = with.Out
	}
	if with.Err != nil {
		c.cmd.Stderr = with.Err
	}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	held := make(chan error, 1)
	go func() {
		// Only the thread that started a ptraced child may release it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := c.cmd.Start(); err != nil {
			held <- fmt.Errorf("start %s: %w", argv[0], err)
			return
		}
		pid := c.cmd.Process.Pid
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil || !status.Stopped() {
			c.cmd.Process.Kill()
			held <- fmt.Errorf("hold %s: it did not stop at its first instruction: %w", argv[0], err)
			return
		}
		if err := runToEntry(pid); err != nil {
			c.cmd.Process.Kill()
			held <- fmt.Errorf("hold %s: %w", argv[0], err)
			return
		}
		held <- nil
		<-released
		detached <- syscall.PtraceDetach(pid)
	}()
	if err := <-held; err != nil {
		return nil, err
	}
	return c, nil
}

// PID returns the command's process id.
func (c *Command) PID() int { return c.cmd.Process.Pid }

// Release lets the command run.
func (c *Command) Release() error {
	if err := c.release(); err != nil {
		return fmt.Errorf("release process %d: %w", c.PID(), err)
	}
	return nil
}

// Kill ends a command that must not run.
func (c *Command) Kill() {
	c.cmd.Process.Kill()
	_ = c.Release()
	_ = c.cmd.Wait()
}

// Signal sends a signal to the command.
func (c *Command) Signal(s os.Signal) error { return c.cmd.Process.Signal(s) }

// Wait returns the command's exit code, or 128 plus the signal that ended it,
// as a shell reports it.
func (c *Command) Wait() (int, error) {
	err := c.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 0, fmt.Errorf("wait for process %d: %w", c.PID(), err)
	}
	status := c.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return status.ExitStatus(), nil
}

// breakpoint is the instruction that stops a program: int3, which the program counter then has
// passed, and brk #0.
var breakpoint = map[string][]byte{"amd64": {0xcc}, "arm64": {0x00, 0x00, 0x20, 0xd4}}[runtime.GOARCH]

// runToEntry lets a process that stopped at execve run to the program's entry point, through its
// dynamic linker. It sets a breakpoint, and removes it before it returns. The thread that traces the
// process must call it.
func runToEntry(pid int) error {
	if err := syscall.PtraceSetOptions(pid, syscall.PTRACE_O_TRACEEXEC); err != nil {
		return fmt.Errorf("run to the entry point: %w", err)
	}
	for {
		again, err := runProgramToEntry(pid)
		if !again || err != nil {
			return err
		}
	}
}

// runProgramToEntry does so with one program. again is true if a constructor of a library
// (LD_PRELOAD) replaced it by another program.
func runProgramToEntry(pid int) (again bool, err error) {
	address, err := proc.EntryPoint(pid)
	if err != nil {
		return false, nil // it stays at its first instruction
	}
	entry := uintptr(address)
	original := make([]byte, len(breakpoint))
	if _, err := syscall.PtracePeekText(pid, entry, original); err != nil {
		return false, nil // not mapped
	}
	if _, err := syscall.PtracePokeText(pid, entry, breakpoint); err != nil {
		return false, nil
	}
	signal := 0
	for {
		if err := syscall.PtraceCont(pid, signal); err != nil {
			return false, fmt.Errorf("run to the entry point: %w", err)
		}
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil {
			return false, fmt.Errorf("run to the entry point: %w", err)
		}
		if !status.Stopped() {
			// The dynamic linker failed, and has said why on stderr.
			return false, errors.New("it ended before its program began")
		}
		if status.TrapCause() == syscall.PTRACE_EVENT_EXEC {
			return true, nil
		}
		signal = int(status.StopSignal()) // the process gets its own signals, not ours
		if status.StopSignal() != syscall.SIGTRAP {
			continue
		}
		var regs syscall.PtraceRegs
		if err := syscall.PtraceGetRegs(pid, &regs); err != nil {
			return false, fmt.Errorf("read registers: %w", err)
		}
		if at := regs.PC() - address; at > uint64(len(breakpoint)) {
			continue
		}
		if _, err := syscall.PtracePokeText(pid, entry, original); err != nil {
			return false, fmt.Errorf("remove the breakpoint: %w", err)
		}
		regs.SetPC(address)
		if err := syscall.PtraceSetRegs(pid, &regs); err != nil {
			return false, fmt.Errorf("write registers: %w", err)
		}
		return false, nil
	}
}
