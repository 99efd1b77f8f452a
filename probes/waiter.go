package probes

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

// newWaiter duplicates fd.
func newWaiter(fd int) (*waiter, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("wait for events: %w", err)
	}
	if err := unix.SetNonblock(own, true); err != nil { // os.NewFile then uses the poller
		unix.Close(own)
		return nil, fmt.Errorf("wait for events: %w", err)
	}
	w := &waiter{file: os.NewFile(uintptr(own), "events")}
	if w.conn, err = w.file.SyscallConn(); err != nil {
		w.file.Close()
		return nil, fmt.Errorf("wait for events: %w", err)
	}
	return w, nil
}

// wait returns when the file is ready, on wake or close, or after d. It misses a call just before it.
func (w *waiter) wait(d time.Duration) error {
	if err := w.file.SetReadDeadline(time.Now().Add(d)); err != nil {
		return fmt.Errorf("wait for events: %w", err)
	}
	waited := false
	err := w.conn.Read(func(uintptr) bool {
		before := waited
		waited = true
		return before
	})
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("wait for events: %w", err)
	}
	return nil
}

func (w *waiter) wake() { _ = w.file.SetReadDeadline(time.Now()) } // if it is closed nobody waits

// close may be called again.
func (w *waiter) close() error {
	if err := w.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("close what waits for events: %w", err)
	}
	return nil
}
