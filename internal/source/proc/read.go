// Package proc is the only reader of /proc. It reads the mappings, open files, status and
// environment of processes, the files that they map, and facts about this process and the
// kernel.
//
// Every process that it reads may be hostile: the process chooses its names and paths, the
// content of its files, and when all of that changes. So a file is opened once, its
// descriptor is checked, and only the descriptor is used from then on. Every read has a
// limit.
package proc

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// ErrTooLarge is the error of data of a process that exceeds its limit.
var ErrTooLarge = errors.New("too large to be read")

// dirOf returns the directory of a process or of a thread. For this process it is right
// even if /proc shows the numbers of another PID namespace.
func dirOf(pid int) string {
	if pid == os.Getpid() {
		return "/proc/self"
	}
	return "/proc/" + strconv.Itoa(pid)
}

// read returns a file of a process's directory that has at most limit bytes.
// The error is os.ErrNotExist for a process that is gone, or ErrTooLarge. It makes the
// system calls itself: an os.File needs twice as many, to find out whether it can be polled.
func read(pid int, name string, limit int64) ([]byte, error) {
	path := dirOf(pid) + "/" + name
	fd, err := retry(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, notExist(&os.PathError{Op: "open", Path: path, Err: err})
	}
	defer unix.Close(fd)
	b := make([]byte, 0, firstRead)
	for {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, err := retry(func() (int, error) { return unix.Read(fd, b[len(b):cap(b)]) })
		switch {
		case err != nil:
			return b, notExist(&os.PathError{Op: "read", Path: path, Err: err})
		case n == 0:
			return b, nil
		case int64(len(b)+n) > limit:
			return b[:limit], fmt.Errorf("process %d's %s: %w", pid, name, ErrTooLarge)
		}
		b = b[:len(b)+n]
	}
}

// firstRead has room for most of what is read of a process.
const firstRead = 1024

// retry calls f until no signal interrupts it.
func retry(f func() (int, error)) (int, error) {
	for {
		if n, err := f(); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// notExist turns the kernel's error for a process that ended during a read into
// os.ErrNotExist.
func notExist(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return os.ErrNotExist
	}
	return err
}
