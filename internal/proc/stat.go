package proc

import (
	"bytes"
	"fmt"
	"strconv"
)

// stat returns the fields of /proc/PID/stat from the third, the state, on.
// proc_pid_stat(5).
func stat(pid int) ([][]byte, error) {
	b, err := read(pid, "stat", maxLine)
	if err != nil {
		return nil, err
	}
	// The second field is the command name in parentheses, which may itself
	// hold parentheses, spaces and newlines; no field after it does.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 20 {
		return nil, fmt.Errorf("read process %d's stat: %d fields", pid, len(fields))
	}
	return fields, nil
}

func statNumber(pid, field int) (uint64, error) {
	fields, err := stat(pid)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(string(fields[field-3]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read field %d of process %d's stat: %w", field, pid, err)
	}
	return n, nil
}

// StartTicks returns when a process began, in clock ticks (a hundredth of a
// second) since boot. The error is os.ErrNotExist for a process that is gone.
func StartTicks(pid int) (uint64, error) { return statNumber(pid, 22) }

// parentOf returns a process's parent, 0 for one that this PID namespace does not
// show. The error is os.ErrNotExist for a process that is gone.
func parentOf(pid int) (int, error) {
	n, err := statNumber(pid, 4)
	return int(n), err
}
