package probes

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"
)

// ErrNotSupported is the error of a feature that this kernel lacks.
var ErrNotSupported = ebpf.ErrNotSupported

// A Feature is something of the kernel's that tracing uses.
type Feature struct {
	Name  string // for people
	Since string // the first Linux that has it, or the option that builds it in
	// Optional: without it tracing works by a slower way.
	Optional bool
	// Err is nil if the kernel has it, ErrNotSupported if it lacks it, and
	// anything else if that cannot be told, as without privilege.
	Err error
}

// String returns the feature's name and since when there is it.
func (f Feature) String() string { return fmt.Sprintf("%s (%s)", f.Name, f.Since) }

// Features asks the kernel for everything that tracing uses. BPF features are
// asked for by loading a small program or map.
func Features() []Feature {
	_, noBTF := btf.LoadKernelSpec()
	return []Feature{
		{Name: "BPF ring buffer", Since: "Linux 5.8", Err: features.HaveMapType(ebpf.RingBuf)},
		{Name: "BPF task storage", Since: "Linux 5.11", Err: features.HaveMapType(ebpf.TaskStorage)},
		{Name: "attach cookies", Since: "Linux 5.15", Err: features.HaveProgramHelper(ebpf.Kprobe, asm.FnGetAttachCookie)},
		{Name: "BTF", Since: "CONFIG_DEBUG_INFO_BTF", Err: noBTF},
		{Name: "uprobes", Since: "CONFIG_UPROBE_EVENTS", Err: haveUprobes()},
		{Name: "uprobe_multi links", Since: "Linux 6.6", Optional: true, Err: features.HaveBPFLinkUprobeMulti()},
	}
}

// haveUprobes looks for the perf device that uprobes are made with; links of
// many uprobes need none.
func haveUprobes() error {
	const devices = "/sys/bus/event_source/devices"
	if haveMulti() {
		return nil
	}
	if _, err := os.Stat(devices); err != nil {
		return fmt.Errorf("look for the uprobe device: %w", err)
	}
	_, err := os.Stat(devices + "/uprobe")
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("no uprobe device: %w", ErrNotSupported)
	}
	return err
}

// KernelRelease returns what uname -r prints, "" if that cannot be told.
func KernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// ParseRelease returns the numbers that a kernel's release begins with, 0 for
// those that it lacks.
func ParseRelease(release string) (major, minor, patch int) {
	_, _ = fmt.Sscanf(release, "%d.%d.%d", &major, &minor, &patch)
	return major, minor, patch
}
