package unwind

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The unwinder's Go side raises RLIMIT_MEMLOCK for a moment when it starts. That
// takes CAP_SYS_RESOURCE, it is for the whole process, and a child started then
// would inherit it; kernels from 5.11 on account BPF memory to the cgroup and
// need none of it. So it starts on a thread of its own on which the kernel
// answers those calls with success and does nothing. No other thread and no
// child sees that: the runtime makes no thread from one that is locked to a
// goroutine, nothing there starts a process, and the thread ends with the
// goroutine.

// auditArch is what the kernel calls this architecture (linux/audit.h).
var auditArch = map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]

// withoutMemlock calls f on such a thread.
func withoutMemlock(f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		// Where it fails, and CAP_SYS_RESOURCE is there, f works all the same.
		filter := answerMemlock()
		err := f()
		if err != nil {
			err = errors.Join(err, filter)
		}
		result <- err
	}()
	return <-result
}

// answerMemlock makes the kernel answer this thread's attempts to set
// RLIMIT_MEMLOCK with 0.
func answerMemlock() error {
	const (
		nr       = 0 // offsets in struct seccomp_data
		arch     = 4
		resource = 24
		newLimit = 32
	)
	load := func(off uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: off}
	}
	// unless jumps n instructions ahead when the loaded word is not k.
	unless := func(k uint32, n uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jf: n}
	}
	ret := func(k uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k}
	}
	filter := []unix.SockFilter{
		load(arch), unless(auditArch, 9),
		load(nr), unless(unix.SYS_PRLIMIT64, 7),
		load(resource), unless(unix.RLIMIT_MEMLOCK, 5),
		load(newLimit), unless(0, 2),
		load(newLimit + 4), {Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0, Jt: 1},
		ret(unix.SECCOMP_RET_ERRNO), // 0: success
		ret(unix.SECCOMP_RET_ALLOW),
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	install := func() error {
		return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER,
			uintptr(unsafe.Pointer(&prog)), 0, 0)
	}
	err := install()
	if errors.Is(err, unix.EACCES) { // no CAP_SYS_ADMIN
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("set no_new_privs: %w", err)
		}
		err = install()
	}
	runtime.KeepAlive(filter)
	if err != nil {
		return fmt.Errorf("install seccomp filter: %w", err)
	}
	return nil
}
