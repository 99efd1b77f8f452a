// Package doctor checks whether gpumemtrace can trace here, how well, and what
// to do if it cannot. What the machine says is collected first, by the small
// functions named read; the functions named check decide, from that alone.
package doctor

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/gpumemtrace/gpumemtrace/internal/source/gpu"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// Run checks this machine, in a few seconds: tracing is started for real, sees a call
// of this process's, and is ended at once. No other process is probed. It works without privilege and without
// a GPU; what is missing then is what it reports. Unless pid is 0 it checks that
// process too, and no other's libraries.
func Run(pid int) Report {
	p := readPrivileges()
	e := readEnvironment()
	t := readTrial()
	g := readGPUs(gpu.Open())
	defer g.close()
	l := readLibraries(pid, p.has(unix.CAP_SYS_PTRACE))

	var r Report
	r = append(r, checkKernel(probes.KernelRelease(), seccompErrors{probes.CheckSeccomp(0, false), probes.CheckSeccomp(0, true)}, probes.Features())...)
	r = append(r, checkPrivileges(p, t)...)
	r = append(r, checkTracing(t)...)
	r = append(r, checkEnvironment(e, !errors.Is(g.err, gpu.ErrNoCgo))...)
	r = append(r, checkGPUs(g)...)
	r = append(r, checkPhysical(readPhysical(g, l))...)
	r = append(r, checkLibraries(l)...)
	r = append(r, checkLeftovers(readLeftovers(pid))...)
	if pid != 0 {
		r = append(r, checkTarget(readTarget(pid, e, g))...)
	}
	return r
}
