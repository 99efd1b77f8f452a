package doctor

import (
	"net/url"
	"os"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/proc"
	"github.com/gpumemtrace/gpumemtrace/symbolize"
)

type environment struct {
	bindNow    string // LD_BIND_NOW
	debuginfod []string
	// pidNamespace is this process's, 0 if it cannot be told.
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
		g.warn("PID namespace", "mount /proc", "cannot be told")
	default:
		g.ok("PID namespace", "a container's: its processes can be traced, by the pids that they have here (--pid=host or hostPID: true shows all)")
	}
	g.ok("tracefs", "not needed")
	switch {
	case e.bindNow == "":
		g.ok("LD_BIND_NOW", "not set")
	case !cgo:
		g.ok("LD_BIND_NOW", "set, which does not matter to a binary without cgo")
	default:
		// ld.so(8). Mostly the dynamic linker ends the program before this.
		g.fail("LD_BIND_NOW", "unset LD_BIND_NOW",
			"set: the dynamic linker then wants NVML's functions before NVML is loaded, and ends gpumemtrace with a symbol lookup error")
	}
	if len(e.debuginfod) == 0 {
		g.ok("debuginfod", "off (DEBUGINFOD_URLS is not set): debug information comes from this machine alone")
		return g.checks
	}
	var servers []string
	for _, s := range e.debuginfod {
		u, err := url.Parse(s)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			g.warn("debuginfod", "set DEBUGINFOD_URLS to http or https URLs, separated by spaces", "DEBUGINFOD_URLS has what is no URL of a server")
			return g.checks
		}
		servers = append(servers, u.Redacted())
	}
	g.ok("debuginfod", "asks %s, and so tells them the build ids of traced programs", strings.Join(servers, ", "))
	return g.checks
}
