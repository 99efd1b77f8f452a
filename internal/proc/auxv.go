package proc

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// EntryPoint returns the address at which a process's program begins:
// AT_ENTRY of its auxiliary vector (getauxval(3)), which is pairs of words.
func EntryPoint(pid int) (uint64, error) {
	const atEntry, word = 9, 8
	auxv, err := read(pid, "auxv", maxLine)
	if err != nil {
		return 0, fmt.Errorf("find the entry point of process %d: %w", pid, err)
	}
	for ; len(auxv) >= 2*word; auxv = auxv[2*word:] {
		if binary.NativeEndian.Uint64(auxv) == atEntry {
			return binary.NativeEndian.Uint64(auxv[word:]), nil
		}
	}
	return 0, fmt.Errorf("find the entry point of process %d: %w", pid, errors.New("its auxiliary vector does not tell"))
}
