package session

import (
	"bytes"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
)

// maxNames bounds the processes whose names are remembered.
const maxNames = 1 << 16

// processes knows the traced processes' names and when the last target ended.
type processes struct {
	names map[event.Process]string
	alive map[uint32]string // its name when it was first traced
	// fromStart are the processes traced before their first allocation.
	fromStart map[uint32]bool
	done      chan struct{}
	ended     bool
}

func newProcesses() processes {
	return processes{names: map[event.Process]string{}, alive: map[uint32]string{}, fromStart: map[uint32]bool{}, done: make(chan struct{})}
}

// expect says that pid is a target.
func (p *processes) expect(pid int) { p.alive[uint32(pid)] = comm(pid) }

func (p *processes) event(e *event.Event) {
	switch e.Op {
	case event.OpFork:
		p.alive[e.Child.PID], p.fromStart[e.Child.PID] = p.name(e.Proc), true
	case event.OpExit:
		p.name(e.Proc)
		delete(p.alive, e.Proc.PID)
		delete(p.fromStart, e.Proc.PID)
		if len(p.alive) == 0 && !p.ended {
			p.ended = true
			close(p.done)
		}
		return
	case event.OpExec:
		if name := comm(int(e.Proc.PID)); name != "" {
			p.names[e.Proc] = name
		}
		p.fromStart[e.Proc.PID] = true
	}
	p.name(e.Proc)
}

// name returns the process's comm, as it was when the process was first seen
// or last replaced its image.
func (p *processes) name(proc event.Process) string {
	name, ok := p.names[proc]
	if !ok && len(p.names) < maxNames {
		if name = comm(int(proc.PID)); name == "" {
			name = p.alive[proc.PID] // it ended before its first event was read
		}
		if name != "" {
			p.names[proc] = name
		}
	}
	return name
}

// comm returns a process's command name, "" if it is gone.
func comm(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return ""
	}
	return string(bytes.TrimSuffix(text, []byte("\n")))
}

// checkTarget returns an error that says why pid cannot be traced.
func checkTarget(pid int) error {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	switch {
	case err != nil:
		return fmt.Errorf("trace process %d: there is no such process", pid)
	case pid == os.Getpid():
		return fmt.Errorf("trace process %d: that is gpumemtrace itself", pid)
	case over(status):
		return fmt.Errorf("trace process %d: it has exited", pid)
	case !bytes.Contains(status, fmt.Appendf(nil, "\nTgid:\t%d\n", pid)):
		return fmt.Errorf("trace process %d: that is a thread; give the process it belongs to", pid)
	}
	exe, err := os.Open(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		if bytes.Contains(status, []byte("\nKthread:\t1")) {
			return fmt.Errorf("trace process %d: that is a kernel thread", pid)
		}
		return nil // another user's, or another namespace's: the probes may still reach it
	}
	defer exe.Close()
	header := make([]byte, 5)
	if _, err := exe.ReadAt(header, 0); err == nil && string(header[:4]) == "\x7fELF" && header[4] == 1 {
		return fmt.Errorf("trace process %d: it is a 32-bit program, which CUDA no longer supports", pid)
	}
	return nil
}

// over tells from /proc/PID/status whether a process has ended and was not
// waited for yet.
func over(status []byte) bool {
	return bytes.Contains(status, []byte("\nState:\tZ")) || bytes.Contains(status, []byte("\nState:\tX"))
}

// ended tells whether there is no such process any more. One whose first thread
// alone has ended has not.
func ended(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return os.IsNotExist(err)
	}
	if !over(status) {
		return false
	}
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	return err != nil || len(tasks) <= 1
}

// bootTime returns the wall-clock time at which CLOCK_MONOTONIC was zero.
func bootTime() time.Time {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) != nil {
		return time.Time{}
	}
	return time.Now().Add(-time.Duration(ts.Nano()))
}
