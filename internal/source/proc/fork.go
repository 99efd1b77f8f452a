package proc

import (
	"bytes"
	"encoding/binary"
	"os"
	"strconv"
)

// maxAuxiliary bounds the auxiliary vector, which has some 25 entries.
const maxAuxiliary = 64 << 10 // bytes

// Numbered reports whether /proc shows the numbers that system calls of this process take: it may be that of another
// PID namespace.
func Numbered() bool {
	name, err := os.Readlink("/proc/self")
	return err != nil || name == strconv.Itoa(os.Getpid())
}

// Random returns where a process has the random bytes that execve(2) gave it, 0 if that is not known. A process that
// was forked has them from its parent, at the same address.
func Random(pid int) (address uint64) {
	const kind, entry = 25, 16 // AT_RANDOM
	b, _ := read(pid, "auxv", maxAuxiliary)
	for ; len(b) >= entry; b = b[entry:] {
		if binary.LittleEndian.Uint64(b) == kind {
			return binary.LittleEndian.Uint64(b[8:])
		}
	}
	return 0
}

// Maps reports whether a process maps a file whose path ends in some way.
func Maps(pid int, end string) bool {
	b, _ := read(pid, "maps", maxMaps)
	return bytes.Contains(b, []byte(end+"\n"))
}
