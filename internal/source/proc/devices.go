package proc

import (
	"fmt"
	"io"
	"iter"
	"os"

	"golang.org/x/sys/unix"
)

// maxDevices bounds the files in one process's /dev.
const maxDevices = 1 << 16

// Devices returns the character devices in a process's own /dev, which in a
// container are fewer than the machine's: their device numbers (makedev(3)) by
// name. What is in subdirectories, and links, are left out.
func Devices(pid int) (map[string]uint64, error) {
	devices, err := readDevices(pid, maxDevices)
	if err != nil {
		return nil, fmt.Errorf("read the devices of process %d: %w", pid, err)
	}
	return devices, nil
}

func readDevices(pid, limit int) (map[string]uint64, error) {
	root, err := OpenRoot(pid)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	fd, err := unix.Openat(root.fd, "dev", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	dir := os.NewFile(uintptr(fd), "dev")
	defer dir.Close()
	devices, seen := map[string]uint64{}, 0
	for name, err := range names(dir) {
		if err != nil {
			return nil, err
		}
		if seen++; seen > limit {
			return nil, ErrTooLarge
		}
		var st unix.Stat_t
		if unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR {
			devices[name] = st.Rdev
		}
	}
	return devices, nil
}

// someNames is how many names of a directory are read at a time: a process may
// make it hold millions.
const someNames = 1 << 10

// names yields the names in a directory. An error is the last that it yields.
func names(dir *os.File) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for {
			some, err := dir.Readdirnames(someNames)
			for _, name := range some {
				if !yield(name, nil) {
					return
				}
			}
			if err == io.EOF {
				return
			}
			if err != nil {
				yield("", err)
				return
			}
		}
	}
}

// OpenFiles yields what each descriptor of a process leads to: a path of the
// process's choice, or such as "socket:[1]". An error is the last that it
// yields: os.ErrNotExist for a process that is gone, os.ErrPermission for one
// that may not be looked at.
func OpenFiles(pid int) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		dir := dirOf(living(pid)) + "/fd/"
		f, err := os.Open(dir)
		if err != nil {
			yield("", fmt.Errorf("read the open files of process %d: %w", pid, notExist(err)))
			return
		}
		defer f.Close()
		for name, err := range names(f) {
			if err != nil {
				yield("", fmt.Errorf("read the open files of process %d: %w", pid, notExist(err)))
				return
			}
			path, err := os.Readlink(dir + name)
			if err != nil {
				continue // closed in between
			}
			if !yield(path, nil) {
				return
			}
		}
	}
}
