package doctor

import (
	"errors"
	"net/url"
	"os"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
	"github.com/gpumemtrace/gpumemtrace/probes"
	"github.com/gpumemtrace/gpumemtrace/symbolize"
)

// seccompErrors say what is not traced for the sake of processes that are under
// a seccomp filter.
type seccompErrors struct {
	all error // nil: every process can be traced
	one error // nil: a single process without a filter can be
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
		g.warn("return probes", probes.SeccompFix, "%s: only processes without such a filter can be traced, one at a time (-p PID --no-follow)", harm)
	default:
		g.ok("return probes", "harmless to processes that are under a seccomp filter, as in a container")
	}
	for _, f := range features {
		switch {
		case f.Err == nil:
			g.ok(f.Name, "available")
		case errors.Is(f.Err, os.ErrPermission):
			g.warn(f.Name, "run doctor as root (see Privileges)", "not known without CAP_BPF")
		case !errors.Is(f.Err, probes.ErrNotSupported):
			g.warn(f.Name, "none known; the check \"trial start\" shows whether tracing works", "not known: %v", f.Err)
		case f.Without != "":
			g.warn(f.Name, "use a kernel with it ("+f.Since+")", "not in this kernel: %s", f.Without)
		default:
			g.fail(f.Name, "use a kernel with it ("+f.Since+")", "not in this kernel")
		}
	}
	return g.checks
}

type environment struct {
	bindNow    string // LD_BIND_NOW
	debuginfod []string
	// pidNamespace is this process's, 0 if it is not known.
	pidNamespace uint32
}

func readEnvironment() environment {
	ns, _ := proc.Namespace("pid")
	return environment{os.Getenv("LD_BIND_NOW"), symbolize.ConfigFromEnv().DebuginfodURLs, ns}
}

// checkEnvironment judges e. cgo says that this binary loads NVML.
func checkEnvironment(e environment, cgo bool) []Check {
	g := group{name: "Environment"}
	switch e.pidNamespace {
	case proc.InitialPID:
		g.ok("PID namespace", "the initial one: every process can be traced")
	case 0:
		g.warn("PID namespace", "mount /proc", "not known")
	default:
		g.ok("PID namespace", "a container's: the container's processes can be traced, by their PIDs in this container (with --pid=host or hostPID: true, all processes can)")
	}
	switch {
	case e.bindNow == "":
		g.ok("LD_BIND_NOW", "not set")
	case !cgo:
		g.ok("LD_BIND_NOW", "set, which does not matter to a binary without cgo")
	default:
		// ld.so(8). Mostly the dynamic linker ends the program before this.
		g.fail("LD_BIND_NOW", "unset LD_BIND_NOW",
			"set: the dynamic linker then looks up NVML's functions before NVML is loaded, and gpumemtrace ends with a symbol lookup error")
	}
	if len(e.debuginfod) == 0 {
		g.ok("debuginfod", "off (DEBUGINFOD_URLS is not set): debug information comes from this machine alone")
		return g.checks
	}
	var servers []string
	for _, s := range e.debuginfod {
		u, err := url.Parse(s)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			g.warn("debuginfod", "set DEBUGINFOD_URLS to http or https URLs, separated by spaces", "DEBUGINFOD_URLS contains something that is not the URL of a server")
			return g.checks
		}
		servers = append(servers, u.Redacted())
	}
	g.ok("debuginfod", "asks %s for debug information, which sends them the build ids of traced programs", strings.Join(servers, ", "))
	return g.checks
}
