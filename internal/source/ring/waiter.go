package ring

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A waiter waits for a file by the runtime's poller. A thread that waits in a system call of its own would keep
// the runtime's monitor awake, which costs more than all other work of an idle tracer (runtime/proc.go, sysmon).
type waiter struct {
	file *os.File
	conn syscall.RawConn
}

// open duplicates fd.
func (w *waiter) open(fd int) error {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("wait for events: %w", err)
	}
	if err := unix.SetNonblock(own, true); err != nil { // os.NewFile then uses the poller
		unix.Close(own)
		return fmt.Errorf("wait for events: %w", err)
	}
	w.file = os.NewFile(uintptr(own), "events")
	if w.conn, err = w.file.SyscallConn(); err != nil {
		w.file.Close()
		return fmt.Errorf("wait for events: %w", err)
	}
	return nil
}

// Wait returns when the kernel side wakes the reader, on Wake or Close, or after d, if that is not 0. It misses
// what happens just before it, unless that makes already true.
func (w *waiter) Wait(d time.Duration, already func() bool) error {
	var end time.Time
	if d != 0 {
		end = time.Now().Add(d)
	}
	if err := w.file.SetReadDeadline(end); err != nil {
		return fmt.Errorf("wait for events: %w", err)
	}
	waited := false
	err := w.conn.Read(func(uintptr) bool {
		ready := waited || already != nil && already()
		waited = true
		return ready
	})
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("wait for events: %w", err)
	}
	return nil
}

// Wake makes Wait return.
func (w *waiter) Wake() { _ = w.file.SetReadDeadline(time.Now()) } // if it is closed nobody waits

// close may be called again.
func (w *waiter) close() error {
	if err := w.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("close what waits for events: %w", err)
	}
	return nil
}
