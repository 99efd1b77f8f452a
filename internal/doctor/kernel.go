package doctor

import (
	"errors"
	"os"

	"github.com/gpumemtrace/gpumemtrace/probes"
)

// seccompErrors say what is not traced for the sake of processes that are under
// a seccomp filter.
type seccompErrors struct {
	all error // nil: every process can be traced
	one error // nil: a single process without a filter can be
}

func readSeccomp() seccompErrors {
	return seccompErrors{probes.CheckSeccomp(0, false), probes.CheckSeccomp(0, true)}
}

func checkKernel(release string, seccomp seccompErrors, features []probes.Feature) []Check {
	g := group{name: "Kernel"}
	switch major, minor, _ := probes.ParseRelease(release); {
	case major == 0:
		g.warn("version", "compare with Linux 5.15, the oldest supported", "not known (%q)", release)
	case major < 5 || major == 5 && minor < 15:
		// What decides is the features: distributions backport them.
		g.warn("version", "use Linux 5.15 or later", "Linux %s, older than the oldest supported", release)
	default:
		g.ok("version", "Linux %s", release)
	}
	const harm = "return probes kill processes that are under a seccomp filter, as in a container"
	switch {
	case seccomp.one != nil:
		g.fail("return probes", probes.SeccompFix, "%s: nothing is traced", harm)
	case seccomp.all != nil:
		g.warn("return probes", probes.SeccompFix, "%s: only processes without one are traced, one by one (-p PID --no-follow)", harm)
	default:
		g.ok("return probes", "harmless to processes that are under a seccomp filter, as in a container")
	}
	for _, f := range features {
		switch {
		case f.Err == nil:
			g.ok(f.Name, "available")
		case errors.Is(f.Err, os.ErrPermission):
			g.warn(f.Name, "run doctor as root (see Privileges)", "cannot be told without CAP_BPF")
		case !errors.Is(f.Err, probes.ErrNotSupported):
			g.warn(f.Name, "none known: the trial start shows what it needs", "cannot be told: %v", f.Err)
		case f.Optional:
			g.warn(f.Name, "use a kernel with it ("+f.Since+")",
				"not in this kernel: probes go on and off one by one, which takes longer; tracing is the same")
		default:
			g.fail(f.Name, "use a kernel with it ("+f.Since+")", "not in this kernel")
		}
	}
	return g.checks
}
