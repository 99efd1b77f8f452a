package doctor

import (
	"errors"
	"os"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/unwind"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// hitCost is what a traced call costs with an unwound stack, as README says.
const hitCost = "about 2 µs a traced call"

// A trial is a start of tracing that probes nothing.
type trial struct {
	took   time.Duration
	err    error // tracing cannot start
	stacks error // the unwinder cannot
	end    error // of taking it down again
}

func readTrial() (t trial) {
	var unwinder unwind.Loader
	begin := time.Now()
	tracer, err := probes.Open(probes.Options{Exit: unwinder.Exit})
	t.took, t.err, t.stacks = time.Since(begin), err, unwinder.Err
	if err == nil {
		t.end = tracer.Close()
	}
	if unwinder.Unwinder != nil {
		t.end = errors.Join(t.end, unwinder.Unwinder.Close())
	}
	return t
}

func checkTracing(t trial) []Check {
	g := group{name: "Tracing"}
	switch {
	case errors.Is(t.err, probes.ErrPrivilege):
		g.fail("trial start", "run as root, or grant the capabilities named above", "%v", t.err)
		return g.checks
	case t.err != nil:
		g.fail("trial start", "see what else is not ok here", "%v", t.err)
		return g.checks
	case t.end != nil:
		g.warn("trial start", "please report this", "programs load and attach in %.1f s, but do not come off cleanly: %v", t.took.Seconds(), t.end)
	default:
		g.ok("trial start", "programs load and attach in %.1f s", t.took.Seconds())
	}
	if t.stacks != nil {
		fix := "please report this, with the kernel's version"
		if errors.Is(t.stacks, os.ErrPermission) {
			fix = "run as root, or allow BPF programs here (seccomp, a security module)"
		}
		g.warn("stacks", fix, "by frame pointers, and so they end where code has none (CUDA's libraries): the unwinder cannot run: %v", t.stacks)
		g.ok("cost", "not measured without the unwinder")
		return g.checks
	}
	g.ok("stacks", "complete, native and Python: unwound in the kernel, repeated ones by a verified memo")
	g.ok("cost", "%s", hitCost)
	return g.checks
}
