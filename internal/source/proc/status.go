package proc

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

// A Status is what /proc/PID/status says of a process or a thread.
// proc_pid_status(5).
type Status struct {
	Process int // the process that a thread belongs to; that of a process is its own
	// Numbers are the process's in each PID namespace, from this one inwards;
	// none if the kernel does not list them.
	Numbers      []int
	Debugger     int    // the one that is attached, by ptrace(2): 0 for none
	User         uint32 // effective
	Capabilities uint64 // effective, a bit for each CAP_ constant
	// Seccomp is the mode, "0" for no filter, "" if the kernel does not list it.
	Seccomp string
}

// maxStatus bounds a status: a process may be in 65,536 groups.
const maxStatus = 4 << 20 // bytes

// ReadStatus reads the status of a process or a thread. The error is
// os.ErrNotExist for one that is gone.
func ReadStatus(pid int) (Status, error) {
	b, err := read(pid, "status", maxStatus)
	if err != nil {
		return Status{}, err
	}
	s, err := parseStatus(b)
	if err != nil {
		return Status{}, fmt.Errorf("read process %d's status: %w", pid, err)
	}
	return s, nil
}

func parseStatus(b []byte) (s Status, err error) {
	number := func(field []byte, base, bits int) uint64 {
		n, perr := strconv.ParseUint(string(field), base, bits)
		if perr != nil && err == nil {
			err = perr
		}
		return n
	}
	user := false
	for line := range bytes.Lines(b) {
		name, rest, _ := bytes.Cut(line, []byte(":"))
		switch string(name) {
		case "Tgid", "NStgid", "TracerPid", "Uid", "CapEff", "Seccomp":
		default:
			continue
		}
		fields := bytes.Fields(rest)
		if len(fields) == 0 {
			continue
		}
		switch string(name) {
		case "Tgid":
			s.Process = int(number(fields[0], 10, 31))
		case "NStgid":
			for _, f := range fields {
				s.Numbers = append(s.Numbers, int(number(f, 10, 31)))
			}
		case "TracerPid":
			s.Debugger = int(number(fields[0], 10, 31))
		case "Uid": // real, effective, saved, of the file system
			if user = len(fields) == 4; user {
				s.User = uint32(number(fields[1], 10, 32))
			}
		case "CapEff":
			s.Capabilities = number(fields[0], 16, 64)
		case "Seccomp":
			s.Seccomp = string(fields[0])
		}
	}
	if err == nil && (!user || s.Process == 0) {
		err = errors.New("no process or no user in it")
	}
	return s, err
}

// Filtered reports whether a thread of a process is under a seccomp filter. It may
// come under one later.
func Filtered(pid int) bool {
	for _, tid := range threads(pid) {
		// One that cannot be read has ended.
		if s, err := ReadStatus(tid); err == nil && s.Seccomp != "" && s.Seccomp != "0" {
			return true
		}
	}
	return false
}

// stat returns the fields of /proc/PID/stat from the third, the state, on.
// proc_pid_stat(5).
func stat(pid int) ([][]byte, error) {
	b, err := read(pid, "stat", maxLine)
	if err != nil {
		return nil, err
	}
	fields := parseStat(b)
	if len(fields) < 20 {
		return nil, fmt.Errorf("read process %d's stat: %d fields", pid, len(fields))
	}
	return fields, nil
}

func parseStat(b []byte) [][]byte {
	// The second field is the command name in parentheses, which may itself
	// hold parentheses, spaces and newlines; no field after it does.
	return bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
}

func statNumber(pid, field int) (uint64, error) {
	fields, err := stat(pid)
	if err != nil {
		return 0, err
	}
	n, err := number(fields, field)
	if err != nil {
		return 0, fmt.Errorf("read field %d of process %d's stat: %w", field, pid, err)
	}
	return n, nil
}

// number returns a field of a stat, counted from 1 as in proc_pid_stat(5).
func number(stat [][]byte, field int) (uint64, error) {
	return strconv.ParseUint(string(stat[field-3]), 10, 64)
}

// StartTicks returns when a process began, in clock ticks (a hundredth of a
// second) since boot. The error is os.ErrNotExist for a process that is gone.
func StartTicks(pid int) (uint64, error) { return statNumber(pid, 22) }

// Kernel reports whether a process is a kernel thread. It returns false if that cannot be
// read.
func Kernel(pid int) bool {
	fields, err := stat(pid)
	return err == nil && isKernel(fields)
}

func isKernel(stat [][]byte) bool {
	const kthread = 0x00200000 // PF_KTHREAD, include/linux/sched.h
	flags, err := strconv.ParseUint(string(stat[9-3]), 10, 32)
	return err == nil && flags&kthread != 0
}

// Parent returns a process's parent, 0 for one that this PID namespace does not
// show. The error is os.ErrNotExist for a process that is gone.
func Parent(pid int) (int, error) {
	n, err := statNumber(pid, 4)
	return int(n), err
}

// Comm returns a process's command name, "" if it is gone. The process chose
// it: up to 15 bytes of anything but NUL.
func Comm(pid int) string {
	b, err := read(pid, "comm", maxLine)
	if err != nil {
		return ""
	}
	return string(bytes.TrimSuffix(b, []byte("\n")))
}
