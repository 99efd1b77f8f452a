// Package proc is the only reader of /proc: of what processes are, map, hold open
// and were started with, of the files that they map, and of what is said there of
// this process and of the kernel.
//
// Every process that is looked at is hostile: it chooses its names and paths,
// what is in its files, and when all of that changes. So a file is opened once,
// the descriptor is checked, and nothing but the descriptor is used from then
// on; and what is read is bounded before it is read.
package proc

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// ErrTooLarge is the error of something of a process that exceeds what is read
// of it.
var ErrTooLarge = errors.New("too large to be read")

// dirOf returns the directory of a process or of a thread. This process's is
// right also where /proc shows the numbers of another PID namespace.
func dirOf(pid int) string {
	if pid == os.Getpid() {
		return "/proc/self"
	}
	return "/proc/" + strconv.Itoa(pid)
}

// read returns a file of a process's directory that has at most limit bytes.
// The error is os.ErrNotExist for a process that is gone, or ErrTooLarge. It is made of
// system calls: for an os.File there are twice as many, to see whether it can be polled.
func read(pid int, name string, limit int64) ([]byte, error) {
	path := dirOf(pid) + "/" + name
	fd, err := again(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, notExist(&os.PathError{Op: "open", Path: path, Err: err})
	}
	defer unix.Close(fd)
	b := make([]byte, 0, firstRead)
	for {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, err := again(func() (int, error) { return unix.Read(fd, b[len(b):cap(b)]) })
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

// again calls f until no signal comes in between.
func again(f func() (int, error)) (int, error) {
	for {
		if n, err := f(); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// notExist turns what the kernel says of a process that ended meanwhile into
// os.ErrNotExist.
func notExist(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return os.ErrNotExist
	}
	return err
}
