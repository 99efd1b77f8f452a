package probes

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// ErrPrivilege is the error of a tracer that may not trace.
var ErrPrivilege = errors.New("missing privilege")

// A capability is one that a tracer needs. CAP_SYS_ADMIN includes all of them but CAP_SYS_PTRACE.
type capability struct {
	bit         int
	name, usage string
}

var capabilities = []capability{
	{unix.CAP_BPF, "CAP_BPF", "load BPF programs"},
	{unix.CAP_PERFMON, "CAP_PERFMON", "attach uprobes"},
	{unix.CAP_SYS_PTRACE, "CAP_SYS_PTRACE", "read the mappings of other processes"},
}

// MissingCapabilities returns the names of the capabilities that tracing needs
// and this process lacks.
func MissingCapabilities() ([]string, error) {
	status, err := proc.ReadStatus(os.Getpid())
	if err != nil {
		return nil, err
	}
	has := func(bit int) bool { return status.Capabilities>>bit&1 != 0 }
	var missing []string
	for _, c := range capabilities {
		if admin := has(unix.CAP_SYS_ADMIN) && c.bit != unix.CAP_SYS_PTRACE; !has(c.bit) && !admin {
			missing = append(missing, fmt.Sprintf("%s (to %s)", c.name, c.usage))
		}
	}
	return missing, nil
}

func checkPrivilege() error {
	missing, err := MissingCapabilities()
	if err != nil || len(missing) == 0 {
		return nil // if it is unknown, the kernel reports it later
	}
	return fmt.Errorf("%w: run as root, or grant %s", ErrPrivilege, strings.Join(missing, ", "))
}

// explain returns a better reason why tracing did not start, or err.
func explain(err error) error {
	if errors.Is(err, ErrPrivilege) {
		return err
	}
	var lacking []string
	for _, f := range Features() {
		if f.Without == "" && errors.Is(f.Err, ErrNotSupported) {
			lacking = append(lacking, f.String())
		}
	}
	if len(lacking) > 0 {
		return fmt.Errorf("this kernel lacks %s: gpumemtrace needs Linux 5.15 or later: %w", strings.Join(lacking, ", "), err)
	}
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		if status, serr := proc.ReadStatus(os.Getpid()); serr == nil && status.Capabilities>>unix.CAP_SYS_ADMIN&1 == 0 {
			return fmt.Errorf("the kernel refused: it may want CAP_SYS_ADMIN for uprobes, as kernels of 2025 and later do, and those with a kernel.perf_event_paranoid above 2 (%s here): %w",
				proc.Sysctl("kernel/perf_event_paranoid"), err)
		}
		return fmt.Errorf("the kernel refused: a security module, a seccomp filter or kernel lockdown may forbid BPF here: %w", err)
	}
	return err
}

// pidFilterWorks reports whether this kernel can confine probes to a process.
func pidFilterWorks() bool { return confines(KernelRelease()) }

// confines reports whether a multi link's process filter covers all threads of the process. It does from
// Linux 6.12 on (46ba0e49b642 "bpf: fix multi-uprobe PID filtering logic"). Before that, only the kernel
// side's own filter does.
func confines(release string) bool {
	major, minor, _ := ParseRelease(release)
	return major > 6 || major == 6 && minor >= 12
}

// ErrNotSupported is the error of a feature that this kernel lacks.
var ErrNotSupported = ebpf.ErrNotSupported

// A Feature is a feature of the kernel that tracing uses.
type Feature struct {
	Name  string // for the user
	Since string // the first Linux that has it, or the option that builds it in
	// Without describes the difference on a kernel that lacks it, "" if tracing is impossible
	// there.
	Without string
	// Err is nil if the kernel has it, ErrNotSupported if it lacks it, and another error if that
	// is unknown, for example without privilege.
	Err error
}

// String returns the feature's name and the first kernel with it.
func (f Feature) String() string { return fmt.Sprintf("%s (%s)", f.Name, f.Since) }

// Features tests every feature that tracing uses. It loads small programs and maps to test BPF features.
func Features() []Feature {
	_, noBTF := btf.LoadKernelSpec()
	return []Feature{
		{Name: "BPF ring buffer", Since: "Linux 5.8", Err: features.HaveMapType(ebpf.RingBuf)},
		{Name: "BPF task storage", Since: "Linux 5.11", Err: features.HaveMapType(ebpf.TaskStorage)},
		{Name: "attach cookies", Since: "Linux 5.15", Err: features.HaveProgramHelper(ebpf.Kprobe, asm.FnGetAttachCookie)},
		{Name: "BTF", Since: "CONFIG_DEBUG_INFO_BTF", Err: noBTF},
		{Name: "uprobes", Since: "CONFIG_UPROBE_EVENTS", Err: haveUprobes()},
		{Name: "uprobe_multi links", Since: "Linux 6.6", Err: features.HaveBPFLinkUprobeMulti(),
			Without: "probes go on and off one by one, which takes longer; tracing is the same"},
		{Name: "uprobe sessions", Since: "Linux 6.13", Err: haveSession(),
			Without: "SIGILL kills a process, traced or not, if its signal handler interrupts a CUDA call and itself calls CUDA on a stack at a higher address"},
	}
}

// haveUprobes looks for the perf device of uprobes. Links with many uprobes need none.
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

// KernelRelease returns the output of uname -r, "" if it is unknown.
func KernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// ParseRelease returns the numbers at the start of a kernel's release, 0 for missing ones.
func ParseRelease(release string) (major, minor, patch int) {
	_, _ = fmt.Sscanf(release, "%d.%d.%d", &major, &minor, &patch)
	return major, minor, patch
}
