package doctor

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// privileges are what this process may do, and what limits it. A string is ""
// where the kernel does not report it.
type privileges struct {
	missing      []string // of what tracing needs
	missingErr   error
	capabilities uint64 // effective
	// foreignUser: in a user namespace that is not the initial one.
	foreignUser bool
	seccomp     string // mode, as proc.Status says
	lockdown    string
	paranoid    string // kernel.perf_event_paranoid
}

func readPrivileges() privileges {
	lockdown, _ := os.ReadFile("/sys/kernel/security/lockdown")
	p := privileges{
		lockdown: string(lockdown),
		paranoid: proc.Sysctl("kernel/perf_event_paranoid"),
	}
	p.missing, p.missingErr = probes.MissingCapabilities()
	status, _ := proc.ReadStatus(os.Getpid()) // zero: what missingErr is about
	p.capabilities, p.seccomp = status.Capabilities, status.Seccomp
	ns, err := proc.Namespace("user")
	p.foreignUser = err == nil && ns != proc.InitialUser
	return p
}

func (p privileges) has(bit int) bool { return p.capabilities>>bit&1 != 0 }

func checkPrivileges(p privileges, t trial) []Check {
	g := group{name: "Privileges"}
	switch {
	case p.missingErr != nil:
		g.warn("capabilities", "mount /proc", "not known: %v", p.missingErr)
	case len(p.missing) == 0:
		g.ok("capabilities", "all that tracing needs")
	}
	for _, c := range p.missing {
		name, usage, _ := strings.Cut(c, " ")
		g.fail(name, fmt.Sprintf("run as root, or grant %s", name), "missing %s", usage)
	}
	admin := p.has(unix.CAP_SYS_ADMIN)
	if p.has(unix.CAP_CHECKPOINT_RESTORE) || admin {
		g.ok("CAP_CHECKPOINT_RESTORE", "granted")
	} else {
		g.warn("CAP_CHECKPOINT_RESTORE", "run as root, or grant CAP_CHECKPOINT_RESTORE",
			"missing: libraries that were deleted or replaced while in use cannot be read")
	}
	if p.foreignUser {
		g.warn("user namespace", "run outside of it (a rootless container is one)",
			"not the initial one: for BPF, the kernel ignores capabilities of this namespace")
	} else {
		g.ok("user namespace", "the initial one")
	}
	checkLimits(&g, p, t)
	return g.checks
}

// checkLimits is about what may refuse in spite of capabilities. Whether it
// does, the trial knows.
func checkLimits(g *group, p privileges, t trial) {
	refused := t.err != nil && !errors.Is(t.err, probes.ErrPrivilege)
	switch {
	case p.seccomp == "0":
		g.ok("seccomp", "no filter")
	case p.seccomp == "":
		g.ok("seccomp", "not known: the kernel does not report it")
	case refused:
		g.warn("seccomp", "allow bpf(2) and perf_event_open(2): --security-opt seccomp=unconfined, or a privileged container",
			"a filter is on, and may be why tracing does not start")
	case t.err != nil:
		g.ok("seccomp", "a filter is on; once the capabilities are granted, doctor shows whether it allows tracing")
	default:
		g.ok("seccomp", "a filter is on, and it allows tracing")
	}
	switch mode := bracketed(p.lockdown); {
	case mode == "":
		g.ok("lockdown", "not in this kernel, or not visible here")
	case mode != "confidentiality":
		g.ok("lockdown", "%s", mode)
	case t.err == nil:
		g.warn("lockdown", "boot with lockdown=integrity or none", "confidentiality: BPF programs may not read kernel memory, so stacks may end early")
	default:
		g.warn("lockdown", "boot with lockdown=integrity or none", "confidentiality: BPF programs may not read kernel memory")
	}
	switch level, err := strconv.Atoi(p.paranoid); {
	case p.paranoid == "":
		g.warn("perf_event_paranoid", "use a kernel with CONFIG_PERF_EVENTS, and mount /proc/sys", "not there: this kernel may have no perf events")
	case err == nil && level > 2 && !p.has(unix.CAP_SYS_ADMIN):
		g.warn("perf_event_paranoid", "set it to 2 (sysctl kernel.perf_event_paranoid=2), or grant CAP_SYS_ADMIN",
			"%s: kernels with this level (Debian's and Ubuntu's) may require CAP_SYS_ADMIN for perf events", p.paranoid)
	default:
		g.ok("perf_event_paranoid", "%s: this does not restrict a process with CAP_PERFMON", p.paranoid)
	}
}

// bracketed returns the chosen one of "none [integrity] confidentiality".
func bracketed(s string) string {
	_, s, _ = strings.Cut(s, "[")
	s, _, _ = strings.Cut(s, "]")
	return s
}
