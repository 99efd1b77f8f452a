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
	"io"
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
// The error is os.ErrNotExist for a process that is gone, or ErrTooLarge.
func read(pid int, name string, limit int64) ([]byte, error) {
	f, err := os.Open(dirOf(pid) + "/" + name)
	if err != nil {
		return nil, notExist(err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("process %d's %s: %w", pid, name, ErrTooLarge)
	}
	return b, notExist(err)
}

// notExist turns what the kernel says of a process that ended meanwhile into
// os.ErrNotExist.
func notExist(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return os.ErrNotExist
	}
	return err
}
