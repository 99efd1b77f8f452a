package doctor

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/unwind"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// programCost is what the BPF programs take of a traced call with a complete
// stack: the least and the most of what `make test-gpu` measured with PyTorch on
// three machines.
const programCost = "2.9 to 4.9 µs where its stack was seen before, and 11 to 21 µs where not (elsewhere, with PyTorch)"

// A trial is what came of starting to trace, without probing anything.
type trial struct {
	took   time.Duration
	err    error // tracing cannot start
	stacks error // the unwinder cannot
	end    error // of taking it down again
	// trap is what one probe takes of a call here; trapErr: not known.
	trap    time.Duration
	trapErr error
}

func readTrial() (t trial) {
	var taker unwind.Taker
	begin := time.Now()
	tracer, err := probes.Open(probes.Options{Stacks: &taker})
	t.took, t.err, t.stacks = time.Since(begin), err, taker.Err()
	if err == nil {
		t.end = tracer.Close()
	}
	t.end = errors.Join(t.end, taker.Close())
	if err == nil {
		t.trap, t.trapErr = probes.TrapCost()
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
	} else {
		g.ok("stacks", "complete, native and Python: unwound in the kernel, repeated ones by a verified memo")
	}
	switch {
	case t.trapErr != nil:
		g.warn("cost", "please report this, with the kernel's version", "not known: %v", t.trapErr)
	case t.stacks != nil:
		g.ok("cost", "a traced call has two traps, each %s here", micros(t.trap))
	default:
		g.ok("cost", "a traced call has two traps, each %s here, and BPF programs take %s", micros(t.trap), programCost)
	}
	return g.checks
}

func micros(d time.Duration) string { return fmt.Sprintf("%.1f µs", float64(d.Nanoseconds())/1000) }
