package probes

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// CheckTarget returns an error if pid cannot be traced, as far as it is known.
func CheckTarget(pid int) error {
	status, err := proc.ReadStatus(pid)
	switch {
	case err != nil:
		return fmt.Errorf("trace process %d: there is no such process%s", pid, inContainers(pid))
	case pid == os.Getpid():
		return fmt.Errorf("trace process %d: that is gpumemtrace itself", pid)
	case proc.Ended(pid):
		return fmt.Errorf("trace process %d: it has exited", pid)
	case status.Process != pid:
		return fmt.Errorf("trace process %d: that is a thread; give the process it belongs to", pid)
	}
	exe, _, err := proc.OpenExecutable(pid)
	switch {
	case err != nil && proc.Kernel(pid):
		return fmt.Errorf("trace process %d: that is a kernel thread", pid)
	case err != nil:
		return CheckSeccomp(pid, true) // of another user or namespace: the probes may still reach it
	}
	defer exe.Close()
	header := make([]byte, 5)
	if _, err := exe.ReadAt(header, 0); err == nil && string(header[:4]) == "\x7fELF" && header[4] == 1 {
		return fmt.Errorf("trace process %d: it is a 32-bit program, which CUDA no longer supports", pid)
	}
	return CheckSeccomp(pid, true)
}

// inContainers says which processes have the number pid in a container, or that this is one, "" for
// nothing.
func inContainers(pid int) string {
	if !proc.InitialPIDNamespace() {
		return " in this container, which sees its own processes alone: give a PID of it, or trace on the host"
	}
	found := numbered(pid)
	switch {
	case len(found) == 0:
		return ""
	case len(found) > most:
		found = append(found[:most], "others")
	}
	return fmt.Sprintf(" here. In a container, this is the PID of %s: give that one", strings.Join(found, ", "))
}

// numbered names the processes that have the number pid in a PID namespace of their own.
func numbered(pid int) (found []string) {
	for _, other := range proc.All() {
		if s, err := proc.ReadStatus(other); err == nil && len(s.Numbers) > 1 && s.Numbers[len(s.Numbers)-1] == pid {
			found = append(found, fmt.Sprintf("%d (%s)", other, proc.Comm(other)))
		}
	}
	return found
}

// most bounds the processes that a message names.
const most = 5

// harmsSeccomp reports whether return probes kill processes under a seccomp filter, on Linux of a release
// (uname -r) and architecture (GOARCH). From Linux 6.11 on, a probed function of x86-64 returns through a system
// call of its own (ff474a78cef5 "uprobe: Add uretprobe syscall to speed up return probe"), which a filter may
// refuse. From 6.14, 6.13.3 and 6.12.14 on the kernel asks no filter (cf6cb56ef244 "seccomp: passthrough uretprobe
// systemcall without filtering"). An older kernel of a distribution may have that change too.
func harmsSeccomp(release, arch string) bool {
	major, minor, patch := ParseRelease(release)
	return arch == "amd64" && major == 6 && (minor == 11 || minor == 12 && patch < 14 || minor == 13 && patch < 3)
}

// SeccompFix is the advice for a kernel that harmsSeccomp.
const SeccompFix = "use Linux 6.14 or later, 6.13 from 6.13.3 on, or 6.12 from 6.12.14 on"

// CheckSeccomp returns an error if return probes could kill a process under a seccomp filter (see harmsSeccomp):
// pid, unless that is 0, or any process, if the probes are not confined to their targets and would be in every
// process that maps a probed library.
func CheckSeccomp(pid int, confined bool) error {
	return checkSeccomp(KernelRelease(), runtime.GOARCH, pid, confined)
}

func checkSeccomp(release, arch string, pid int, confined bool) error {
	if !harmsSeccomp(release, arch) {
		return nil
	}
	if pid != 0 && proc.Filtered(pid) {
		return fmt.Errorf("trace process %d: it is under a seccomp filter, and on Linux %s a return probe would kill it: %s", pid, release, SeccompFix)
	}
	switch {
	case !confines(release):
		return fmt.Errorf("on Linux %s a return probe kills processes that are under a seccomp filter, as in a container, and cannot be confined to a process without one: %s", release, SeccompFix)
	case !confined:
		return fmt.Errorf("on Linux %s a return probe kills processes that are under a seccomp filter, as in a container: confine the probes to one process without a filter (--no-follow), or %s", release, SeccompFix)
	}
	return nil
}
