// Package confine takes from this process what it does not need to trace.
package confine

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// always are the capabilities that tracing takes for as long as it lasts: each process
// that begins has its own mappings read, its own tables made, its own probes put on.
var always = []int{
	unix.CAP_BPF,                // load programs, make maps
	unix.CAP_PERFMON,            // attach uprobes; see every process's mappings come
	unix.CAP_SYS_PTRACE,         // read other users' processes
	unix.CAP_DAC_READ_SEARCH,    // open their files
	unix.CAP_CHECKPOINT_RESTORE, // open files that are mapped and were deleted
}

// Needed returns the capabilities that tracing takes here. Whether CAP_SYS_ADMIN is one
// of them is tried.
func Needed() ([]int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	had, err := own()
	if err != nil {
		return nil, fmt.Errorf("read the own capabilities: %w", err)
	}
	wanted, err := uprobesWantAdmin(had)
	if err != nil {
		return nil, fmt.Errorf("find out who may attach uprobes: %w", err)
	}
	if wanted {
		return append(slices.Clone(always), unix.CAP_SYS_ADMIN), nil
	}
	return always, nil
}

// A set is a thread's capabilities, a bit for each.
type set struct{ effective, permitted, inheritable uint64 }

// Capabilities gives up all capabilities but those that tracing takes, and the means to
// get more, of all its threads. Threads have capabilities of their own, so where there
// is something to give up the program is started anew in its place, with its arguments
// and environment: call it before anything else is done. It returns once nothing is left
// to give up. The error is the kernel's, of what is then not done.
func Capabilities() error {
	// The exec is by this thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("gain no privileges: %w", err)
	}
	had, err := own()
	if err != nil {
		return fmt.Errorf("read the own capabilities: %w", err)
	}
	needed, err := Needed()
	if err != nil {
		return err
	}
	keep := had.permitted & bits(needed...)
	if had.permitted == keep {
		return nil
	}
	// exec gives root what it had, and no more of what it had not (no_new_privs); to
	// other users it gives what is ambient.
	next := set{effective: keep, permitted: keep}
	if os.Geteuid() != 0 {
		next.inheritable = keep
	}
	if err := next.assume(); err != nil {
		return fmt.Errorf("give up capabilities: %w", err)
	}
	for bit := range 64 {
		if next.inheritable>>bit&1 != 0 {
			if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(bit), 0, 0); err != nil {
				return fmt.Errorf("keep capability %d: %w", bit, err)
			}
		}
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	return fmt.Errorf("restart without the other capabilities: %w", unix.Exec(program, os.Args, os.Environ()))
}

func bits(capabilities ...int) (all uint64) {
	for _, c := range capabilities {
		all |= 1 << c
	}
	return all
}

// uprobesWantAdmin reports whether this kernel opens a perf event of a uprobe for
// CAP_SYS_ADMIN alone: those from 2025 on do (and what is older and was mended), while
// others take CAP_PERFMON, unless they are of a distribution that has a
// perf_event_paranoid above 2. Probes are such events before Linux 6.6. The calling thread
// must be locked, and have the capabilities had.
func uprobesWantAdmin(had set) (bool, error) {
	text, err := os.ReadFile("/sys/bus/event_source/devices/uprobe/type")
	if err != nil {
		return true, nil // as far as is known here
	}
	kind, err := strconv.ParseUint(string(bytes.TrimSpace(text)), 10, 32)
	if err != nil {
		return true, nil
	}
	without := had
	without.effective &^= bits(unix.CAP_SYS_ADMIN)
	if err := without.assume(); err != nil {
		return false, err
	}
	// The event names no file. The kernel checks the caller's privileges first, then returns EINVAL.
	fd, err := unix.PerfEventOpen(&unix.PerfEventAttr{Type: uint32(kind), Size: unix.PERF_ATTR_SIZE_VER5}, -1, 0, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err == nil {
		unix.Close(fd)
	}
	return errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM), had.assume()
}

// own returns the calling thread's.
func own() (s set, err error) {
	head, data := header, [2]unix.CapUserData{}
	if err := unix.Capget(&head, &data[0]); err != nil {
		return s, err
	}
	word := func(low, high uint32) uint64 { return uint64(low) | uint64(high)<<32 }
	return set{
		word(data[0].Effective, data[1].Effective),
		word(data[0].Permitted, data[1].Permitted),
		word(data[0].Inheritable, data[1].Inheritable),
	}, nil
}

// assume makes it the calling thread's.
func (s set) assume() error {
	head, data := header, [2]unix.CapUserData{}
	for i := range data {
		data[i] = unix.CapUserData{
			Effective:   uint32(s.effective >> (32 * i)),
			Permitted:   uint32(s.permitted >> (32 * i)),
			Inheritable: uint32(s.inheritable >> (32 * i)),
		}
	}
	return unix.Capset(&head, &data[0])
}

// header is that of sets of 64 capabilities, which are in two parts.
var header = unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
