package doctor

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gpumemtrace/gpumemtrace/probes"
)

// readRelease returns the kernel's release, "" if it cannot be told.
func readRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

func checkKernel(release string, features []probes.Feature) []Check {
	g := group{name: "Kernel"}
	var major, minor int
	switch n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor); {
	case n < 2:
		g.warn("version", "compare with Linux 5.15, the oldest supported", "not known (%q)", release)
	case major < 5 || major == 5 && minor < 15:
		// What decides is the features: distributions backport them.
		g.warn("version", "use Linux 5.15 or later", "Linux %s, older than the oldest supported", release)
	default:
		g.ok("version", "Linux %s", release)
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
