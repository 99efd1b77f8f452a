package probes

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// attachSession is BPF_TRACE_UPROBE_SESSION, from Linux 6.13 on. One link holds many functions. Its program
// runs at the entry of each and, if it returns 0 there, at the return too. Only then the kernel replaces
// the return address.
const attachSession = ebpf.AttachType(57)

// attachType returns the best way to attach probes on this kernel: a session, a link with many probes, or,
// with AttachNone, a link for each probe.
func attachType() ebpf.AttachType {
	switch {
	case haveSession() == nil:
		return attachSession
	case haveMulti():
		return ebpf.AttachTraceUprobeMulti
	}
	return ebpf.AttachNone
}

// haveMulti reports whether one link can hold many uprobes, with cookies and a process filter.
func haveMulti() bool { return features.HaveBPFLinkUprobeMulti() == nil }

// haveSession returns nil if the kernel has sessions, and ErrNotSupported if it has none. A kernel with
// sessions complains about the path first.
var haveSession = sync.OnceValue(func() error {
	prog, err := emptyProgram(attachSession)
	if err != nil {
		return err
	}
	defer prog.Close()
	fd, err := createSession("/", prog, []uint64{0}, []uint64{0}, 0)
	switch {
	case errors.Is(err, unix.EBADF): // not a file with code
		return nil
	case errors.Is(err, unix.EINVAL):
		return ErrNotSupported
	case err == nil:
		_ = unix.Close(fd)
		return fmt.Errorf("the kernel put a probe on a directory")
	}
	return err
})

// emptyProgram loads a program that does nothing.
func emptyProgram(attach ebpf.AttachType) (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.Kprobe, AttachType: attach, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
}

// session attaches a program of attachSession to the offsets of a file, each with its cookie. pid 0 means
// every process that maps the file. (The link package of cilium/ebpf has no such link.)
func session(path string, prog *ebpf.Program, offsets, cookies []uint64, pid int) (link.Link, error) {
	fd, err := createSession(path, prog, offsets, cookies, pid)
	if err != nil {
		return nil, fmt.Errorf("create a uprobe session: %w", err)
	}
	return link.NewFromFD(fd)
}

// createSession makes the link by its part of union bpf_attr (include/uapi/linux/bpf.h).
func createSession(path string, prog *ebpf.Program, offsets, cookies []uint64, pid int) (int, error) {
	file, err := unix.BytePtrFromString(path)
	if err != nil {
		return -1, err
	}
	attr := struct {
		prog, target, attachType, flags uint32
		path                            *byte
		offsets, counters, cookies      *uint64
		count, uprobeFlags, pid, _      uint32
	}{
		prog: uint32(prog.FD()), attachType: uint32(attachSession), path: file,
		offsets: unsafe.SliceData(offsets), cookies: unsafe.SliceData(cookies),
		count: uint32(len(offsets)), pid: uint32(pid),
	}
	fd, err := linkCreate(unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	runtime.KeepAlive(prog)
	return fd, err
}

// linkCreate is the command BPF_LINK_CREATE of bpf(2).
func linkCreate(attr unsafe.Pointer, size uintptr) (int, error) {
	const command = 28
	fd, _, errno := unix.Syscall(unix.SYS_BPF, command, uintptr(attr), size)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}
