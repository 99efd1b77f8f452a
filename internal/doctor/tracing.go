package doctor

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/source/unwind"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// programCost is what the BPF programs take of a traced call with a complete
// stack: the least and the most of what `make test-gpu` measured with PyTorch on
// three machines.
const programCost = "2.9 to 4.9 µs if its stack was seen before, and 11 to 21 µs if not (measured with PyTorch on other machines)"

// A trial is what came of starting to trace, and of one call of this process's.
type trial struct {
	took   time.Duration
	err    error // tracing cannot start
	stacks error // the unwinder cannot
	end    error // of taking it down again
	call   call
	// trap is what one probe takes of a call here; trapErr: not known.
	trap    time.Duration
	trapErr error
}

// A call is what came of the stack of a call that was made more than once.
type call struct {
	err      error // it was not seen
	why      error // its stack is not complete
	frames   int
	memoized bool // the memo knew it when it came again
}

func readTrial() (t trial) {
	var taker unwind.Capture
	begin := time.Now()
	tracer, err := probes.Open(probes.Options{Stacks: &taker})
	t.took, t.err, t.stacks = time.Since(begin), err, taker.Err()
	if err == nil {
		t.call = readCall(tracer, &taker)
		t.end = tracer.Close()
	}
	t.end = errors.Join(t.end, taker.Close())
	if err == nil {
		t.trap, t.trapErr = probes.TrapCost()
	}
	return t
}

// readCall traces a call of this process's, in the way of any other's, and ends the
// trace.
func readCall(tracer *probes.Tracer, taker *unwind.Capture) call {
	if err := taker.Analyze(os.Getpid()); err != nil {
		return call{err: err}
	}
	const times, size = 3, 1
	seen := seen{taker: taker}
	ran := make(chan error, 1)
	go func() { ran <- tracer.Run(&seen, nil) }()
	err := tracer.CallSelf(times, size)
	err = errors.Join(err, tracer.Stop(), <-ran)
	stats, serr := taker.Stats()
	switch err := errors.Join(err, serr); {
	case err != nil:
		seen.call.err = err
	case seen.events != times || seen.stacks != 1:
		seen.call.err = fmt.Errorf("made %d calls from one place and saw %d of them, with %d stacks", times, seen.events, seen.stacks)
	}
	seen.call.memoized = stats.MemoHits > 0
	return seen.call
}

// seen takes what the trace of a call says.
type seen struct {
	taker          *unwind.Capture
	events, stacks int
	call           call
}

func (s *seen) Event(e *event.Event) {
	if e.Op == event.OpAlloc {
		s.events++
	}
}

func (s *seen) Stack(st *probes.Stack) {
	s.stacks++
	s.call.frames = int(st.Frames)
	s.call.why = unwind.ErrFramePointers
	if s.taker.Unwinds() {
		decoded := s.taker.Decode(st.Process.PID, st.Flags, st.Frames, st.Words)
		s.call.frames, s.call.why = len(decoded.Frames), decoded.Err
	}
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
	checkStacks(&g, t)
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

func checkStacks(g *group, t trial) {
	const report = "please report this, with the kernel's version"
	switch c := t.call; {
	case t.stacks != nil:
		fix := report
		if errors.Is(t.stacks, os.ErrPermission) {
			fix = "run as root, or allow BPF programs here (seccomp, a security module)"
		}
		g.warn("stacks", fix, "taken by frame pointers, so they end in code without them (CUDA's libraries). The unwinder cannot run: %v", t.stacks)
	case c.err != nil:
		g.warn("stacks", report, "not known, because a test call in this process could not be traced: %v", c.err)
	case c.why != nil:
		g.warn("stacks", report, "not complete: the stack of a test call in this process has %d frames: %v", c.frames, c.why)
	case !c.memoized:
		g.warn("stacks", report, "complete, native and Python; but the memo does not recognize a repeated stack, so each stack is unwound in full, which costs several times more")
	default:
		g.ok("stacks", "complete, native and Python: the %d frames of a test call in this process were unwound in the kernel, and the verified memo recognized them when the call was repeated", c.frames)
	}
}

func micros(d time.Duration) string { return fmt.Sprintf("%.1f µs", float64(d.Nanoseconds())/1000) }
