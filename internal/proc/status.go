package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
)

// dirOf returns the directory of a process.
func dirOf(pid int) string { return "/proc/" + strconv.Itoa(pid) }

// Comm returns a process's command name, "" if it is gone. The process chose
// it: up to 15 bytes of anything but NUL.
func Comm(pid int) string {
	b, err := os.ReadFile(dirOf(pid) + "/comm")
	if err != nil {
		return ""
	}
	return string(bytes.TrimSuffix(b, []byte("\n")))
}

// stat returns the fields of /proc/PID/stat from the third, the state, on.
// proc_pid_stat(5).
func stat(pid int) ([][]byte, error) {
	b, err := os.ReadFile(dirOf(pid) + "/stat")
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

// Identity returns a process's number in its innermost PID namespace and its
// effective user. The error is os.ErrNotExist for a process that is gone.
// proc_pid_status(5).
func Identity(pid int) (inner int, user uint32, err error) {
	b, err := os.ReadFile(dirOf(pid) + "/status")
	if err != nil {
		return 0, 0, err
	}
	inner = pid // kernels without PID namespaces do not say it
	err = fmt.Errorf("read process %d's status: no user", pid)
	for line := range bytes.Lines(b) {
		fields := bytes.Fields(line)
		switch {
		case len(fields) > 2 && string(fields[0]) == "Uid:":
			var n uint64
			n, err = strconv.ParseUint(string(fields[2]), 10, 32)
			user = uint32(n)
		case len(fields) > 1 && string(fields[0]) == "NStgid:":
			if n, err := strconv.Atoi(string(fields[len(fields)-1])); err == nil {
				inner = n
			}
		}
	}
	return inner, user, err
}

// Parent returns a process's parent, 0 for one that this PID namespace does not
// show. The error is os.ErrNotExist for a process that is gone.
func Parent(pid int) (int, error) {
	n, err := statNumber(pid, 4)
	return int(n), err
}

// Children returns the children that a process has now, whichever of its
// threads began them, in order of pid. One that begins meanwhile may be missed.
func Children(pid int) []int {
	children := map[int]bool{}
	// The kernel may skip a child while one before it ends: it is then seen
	// the next time.
	for range 3 {
		before := len(children)
		found, err := listedChildren(pid)
		if err != nil {
			found = scannedChildren(pid)
		}
		for _, c := range found {
			children[c] = true
		}
		if len(children) == before {
			break
		}
	}
	var out []int
	for c := range children {
		if parent, err := Parent(c); err == nil && parent == pid {
			out = append(out, c)
		}
	}
	slices.Sort(out)
	return out
}

// listedChildren reads what kernels with CONFIG_PROC_CHILDREN tell. The error
// is that this one does not, or that the process is gone.
func listedChildren(pid int) (children []int, err error) {
	threads, err := os.ReadDir(dirOf(pid) + "/task")
	if err != nil {
		return nil, err
	}
	for _, t := range threads {
		b, err := os.ReadFile(dirOf(pid) + "/task/" + t.Name() + "/children")
		if errors.Is(err, os.ErrNotExist) {
			if _, gone := os.Stat(dirOf(pid) + "/task/" + t.Name()); gone != nil {
				continue
			}
		}
		if err != nil {
			return nil, err
		}
		for field := range bytes.FieldsSeq(b) {
			if child, err := strconv.Atoi(string(field)); err == nil {
				children = append(children, child)
			}
		}
	}
	return children, nil
}

// scannedChildren asks every process for its parent.
func scannedChildren(pid int) (children []int) {
	for _, other := range All() {
		if parent, err := Parent(other); err == nil && parent == pid {
			children = append(children, other)
		}
	}
	return children
}

// All returns the processes that are here now, in order of pid.
func All() (pids []int) {
	// The entries that could be read come with an error, too.
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// over tells whether a thread has ended: its directory then shows no memory,
// files or root.
func over(pid int) bool {
	fields, err := stat(pid)
	return err != nil || fields[0][0] == 'Z' || fields[0][0] == 'X'
}

// living returns a thread of the process that has not ended: the first unless
// that one has. /proc/TID shows what its process has.
func living(pid int) int {
	if !over(pid) {
		return pid
	}
	threads, _ := os.ReadDir(dirOf(pid) + "/task")
	for _, t := range threads {
		if tid, err := strconv.Atoi(t.Name()); err == nil && !over(tid) {
			return tid
		}
	}
	return pid
}

// Ended tells whether there is no such process any more, or one that was only
// not waited for yet. One whose first thread alone has ended has not.
func Ended(pid int) bool {
	if _, err := os.Stat(dirOf(pid)); err != nil {
		return errors.Is(err, os.ErrNotExist)
	}
	return over(living(pid))
}
