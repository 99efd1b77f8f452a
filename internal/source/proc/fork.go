package proc

import (
	"bytes"
	"os"
	"strconv"
)

// Numbered reports whether /proc shows the numbers that system calls of this process take: it may be that of another
// PID namespace.
func Numbered() bool {
	name, err := os.Readlink("/proc/self")
	return err != nil || name == strconv.Itoa(os.Getpid())
}

// Random returns where a process has the random bytes that execve(2) gave it, 0 if that is not known. A process that
// was forked has them from its parent, at the same address.
func Random(pid int) (address uint64) {
	const atRandom = 25
	address, _, _ = auxiliary(pid, atRandom)
	return address
}

// Maps reports whether a process maps a file whose path ends in some way.
func Maps(pid int, end string) bool {
	b, _ := read(pid, "maps", maxMaps)
	return bytes.Contains(b, []byte(end+"\n"))
}
