package heap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// Bounds of stopping a process: how often threads are looked for that are new, and how
// long all of them may need to stop.
const (
	pauseRounds = 16
	pauseTime   = 500 * time.Millisecond
	pauseThread = 100 * time.Microsecond
)

// pauseProcess stops all threads of a process until resume is called. The kernel lets
// them go on if this process ends first. They are stopped by ptrace: no signal is
// sent, and a parent sees nothing.
func pauseProcess(pid int) (resume func(), err error) {
	ready, done, over := make(chan error), make(chan struct{}), make(chan struct{})
	go onThread(func() {
		defer close(over)
		var p pauser
		err := p.stop(pid)
		if err == nil {
			ready <- nil
			<-done
		}
		p.resume()
		if err != nil {
			ready <- err
		}
	})
	if err := <-ready; err != nil {
		<-over
		return nil, fmt.Errorf("stop process %d: %w", pid, err)
	}
	return func() {
		close(done)
		<-over
	}, nil
}

// onThread calls f on a thread of its own, which ends with f: only the thread that
// stopped others may let them go on, and the kernel does so when that thread ends.
func onThread(f func()) {
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() { // the first thread does not end
		defer runtime.UnlockOSThread()
		over := make(chan struct{})
		go func() {
			defer close(over)
			onThread(f)
		}()
		<-over
		return
	}
	f()
}

// A pauser has the threads that were seized.
type pauser struct {
	threads []int
	signals map[int]int // that a thread was about to get when it stopped
}

// stop stops the threads of a process, and those that they make meanwhile.
func (p *pauser) stop(pid int) error {
	p.signals = map[int]int{}
	deadline := time.Now().Add(pauseTime)
	known := map[int]bool{}
	for range pauseRounds {
		begin := len(p.threads)
		for _, tid := range proc.Threads(pid) {
			if known[tid] {
				continue
			}
			known[tid] = true
			switch err := unix.PtraceSeize(tid); {
			case errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EPERM) && proc.ThreadEnded(tid):
				continue
			case err != nil:
				return err
			}
			p.threads = append(p.threads, tid)
			if err := unix.PtraceInterrupt(tid); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
		if len(p.threads) == 0 {
			return os.ErrNotExist
		}
		if len(p.threads) == begin {
			return nil
		}
		for _, tid := range p.threads[begin:] {
			if err := p.wait(tid, deadline); err != nil {
				return err
			}
		}
	}
	return errors.New("it makes threads all the time")
}

// wait waits until a thread has stopped or ended.
func (p *pauser) wait(tid int, deadline time.Time) error {
	const (
		stopEvent = 128 // PTRACE_EVENT_STOP
		status    = 24  // si_status of a siginfo_t
	)
	for {
		var info unix.Siginfo
		// An end is left for the parent.
		err := unix.Waitid(unix.P_PID, tid, &info, unix.WSTOPPED|unix.WNOHANG|unix.WALL, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ECHILD) || errors.Is(err, unix.ESRCH):
			return nil // it ended
		case err != nil:
			return err
		}
		if info.Signo != 0 {
			b := (*[unsafe.Sizeof(info)]byte)(unsafe.Pointer(&info))
			if s := binary.LittleEndian.Uint32(b[status:]); s>>8 != stopEvent {
				p.signals[tid] = int(s & 0xff)
			}
			return nil
		}
		if time.Now().After(deadline) {
			return errors.New("a thread does not stop")
		}
		time.Sleep(pauseThread)
	}
}

// resume lets all threads go on, with the signals that they were about to get. One that
// has not stopped yet must do so first.
func (p *pauser) resume() {
	deadline := time.Now().Add(pauseTime)
	for _, tid := range p.threads {
		if !p.detach(tid) && p.wait(tid, deadline) == nil {
			p.detach(tid)
		}
	}
}

func (p *pauser) detach(tid int) bool {
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_DETACH, uintptr(tid), 0, uintptr(p.signals[tid]), 0, 0)
	return errno == 0
}
