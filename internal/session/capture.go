package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
	"github.com/gpumemtrace/gpumemtrace/internal/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/proc"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/unwind"
	"github.com/gpumemtrace/gpumemtrace/probes"
	"github.com/gpumemtrace/gpumemtrace/symbolize"
)

// StackMode says how stacks are captured.
type StackMode string

const (
	StacksAuto         StackMode = "auto" // unwind, and follow frame pointers where that cannot run
	StacksUnwind       StackMode = "unwind"
	StacksFramePointer StackMode = "fp"
)

// analysePatience bounds how long one process's analysis is waited for.
const analysePatience = 30 * time.Second

// How long a process's new mappings wait to be analysed: most programs that a
// process starts end sooner than an analysis takes. One that uses CUDA does not
// wait.
const (
	mappedDelay = 100 * time.Millisecond
	forkedDelay = 10 * time.Millisecond
)

// A capturer turns stack records into frames, with an unwinder if there is one.
type capturer struct {
	loader unwind.Loader
	sym    *symbolize.Symbolizer
	mode   string // for people

	mu      sync.Mutex
	reasons map[string]uint64 // incomplete stacks by reason
	cuda    map[int]bool      // processes that map a library of CUDA's
}

func newCapturer(sym *symbolize.Symbolizer, opts Options) *capturer {
	return &capturer{
		sym:     sym,
		mode:    "frame pointers",
		loader:  unwind.Loader{Options: unwind.Options{NoMemo: opts.NoMemo, VerifyStacks: opts.VerifyStacks}},
		reasons: map[string]uint64{},
		cuda:    map[int]bool{},
	}
}

// loaded is called once the tracer is open. It returns an error for a mode
// that was asked for and cannot run, and a warning for one that took its place.
func (c *capturer) loaded(mode StackMode) (warning string, err error) {
	if mode == StacksFramePointer {
		return "", nil
	}
	if c.loader.Err != nil {
		if mode == StacksUnwind {
			return "", c.loader.Err
		}
		c.mode = "frame pointers (the unwinder cannot run)"
		return fmt.Sprintf("stacks end where code has no frame pointers, because the unwinder cannot run here: %v", c.loader.Err), nil
	}
	c.mode, warning = unwoundMode(c.loader.Options.NoMemo, c.loader.Unwinder.MemoErr())
	return warning, nil
}

// unwoundMode says how stacks are unwound, and what the user should know of it.
// memoErr is why the memo cannot run although it is wanted.
func unwoundMode(noMemo bool, memoErr error) (mode, warning string) {
	switch {
	case noMemo:
		return "unwound", ""
	case memoErr != nil:
		return "unwound (the memo cannot run)",
			fmt.Sprintf("each stack is unwound in full, which costs several times more, because the memo cannot run here: %v", memoErr)
	}
	return "unwound, verified memo", ""
}

// analyse makes the stacks of pid complete from now on.
func (c *capturer) analyse(pid int) error {
	if c.loader.Unwinder == nil {
		return nil
	}
	c.mu.Lock()
	c.cuda[pid] = true
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), analysePatience)
	defer cancel()
	return c.loader.Unwinder.Analyze(ctx, pid)
}

// mapped says that pid has new mappings, one of them of CUDA's if cuda is set.
// It waits for nothing.
func (c *capturer) mapped(pid int, cuda bool) {
	c.sym.Invalidate(uint32(pid))
	if c.loader.Unwinder == nil {
		return
	}
	c.mu.Lock()
	if cuda {
		c.cuda[pid] = true
	}
	delay := mappedDelay
	if c.cuda[pid] {
		delay = 0
	}
	c.mu.Unlock()
	c.loader.Unwinder.Changed(pid, delay)
}

// forked says that child began with the mappings of parent. It waits for
// nothing.
func (c *capturer) forked(parent, child uint32) {
	if c.loader.Unwinder == nil {
		return
	}
	c.mu.Lock()
	delay := mappedDelay
	if c.cuda[int(parent)] {
		delay = forkedDelay
	}
	c.mu.Unlock()
	c.loader.Unwinder.Changed(int(child), delay)
}

// replaced says that pid replaced its image. Some of the new one's mappings were
// told before. It waits for nothing.
func (c *capturer) replaced(pid uint32) {
	if c.loader.Unwinder == nil {
		return
	}
	c.mu.Lock()
	delay := mappedDelay
	if c.cuda[int(pid)] {
		delay = 0
	}
	c.mu.Unlock()
	c.loader.Unwinder.Ended(int(pid))
	c.loader.Unwinder.Changed(int(pid), delay)
}

// ended says that pid ended. It waits for nothing.
func (c *capturer) ended(pid uint32) {
	if c.loader.Unwinder == nil {
		return
	}
	c.mu.Lock()
	delete(c.cuda, int(pid))
	c.mu.Unlock()
	c.loader.Unwinder.Ended(int(pid))
}

// invalidate makes the next stacks of pid be unwound in full: the memo names
// one that was dropped.
func (c *capturer) invalidate(pid uint32) {
	if c.loader.Unwinder != nil {
		// It fails where there is no memory for one more process: that has no
		// memo then.
		_ = c.loader.Unwinder.Invalidate(int(pid))
	}
}

// identity reads a process's name and what program it runs.
func (c *capturer) identity(id event.Process) (name string, program *snapshot.Mapping) {
	program = c.sym.Program(id.PID)
	return proc.Comm(int(id.PID)), program
}

// frames locates the frames of a stack, leaf first. The process must be there
// still, as far as its names are to be known.
func (c *capturer) frames(st *probes.Stack) []frame {
	if c.loader.Unwinder == nil {
		out := make([]frame, len(st.Words))
		for i, pc := range st.Words {
			out[i].address = c.sym.Locate(st.Process.PID, pc, symbolize.Return)
		}
		return out
	}
	decoded := c.loader.Unwinder.Decode(st.Process.PID, st.Flags, st.Words)
	if decoded.Err != nil {
		c.mu.Lock()
		if reason := decoded.Err.Error(); len(c.reasons) < maxReasons || c.reasons[reason] > 0 {
			c.reasons[reason]++
		}
		c.mu.Unlock()
	}
	out := make([]frame, len(decoded.Frames))
	for i, f := range decoded.Frames {
		if f.Kind == unwind.Python {
			out[i].python = pythonFrame(f)
			continue
		}
		lookup := symbolize.Exact
		if f.Return {
			lookup = symbolize.Return
		}
		out[i].address = c.sym.Locate(st.Process.PID, f.Addr, lookup)
	}
	return out
}

func pythonFrame(f unwind.Frame) *snapshot.Location {
	line := snapshot.Line{Function: f.Function, File: f.File, Line: f.Line}
	if f.Function == "" {
		line.Function, line.Reason = "[python function]", "its code object could not be read"
	}
	return &snapshot.Location{Lines: []snapshot.Line{line}}
}

// loss returns what the unwinder lost.
func (c *capturer) loss() []loss.Counter {
	u := c.loader.Unwinder
	if u == nil {
		return nil
	}
	s, _, err := u.Stats()
	if err != nil {
		return nil
	}
	out := []loss.Counter{
		{Name: "stacks_incomplete", Value: s.Incomplete, Help: "unwound stacks that end before _start or a thread's start"},
		{Name: "stacks_unknown_process", Value: s.UnknownProcess, Help: "stacks that follow frame pointers because their process was not analysed yet"},
		{Name: "stacks_fallback", Value: s.NoRecord + s.NoChain + s.Empty, Help: "stacks that follow frame pointers because the unwinder found nothing or had no room"},
		{Name: "stacks_cut", Value: s.TooLong, Help: "stacks whose outermost frames were cut off"},
		{Name: "stacks_not_sent", Value: s.NotSent, Help: "stacks that had to be sent again because the ring buffer was full"},
		{Name: "stack_memo_mismatches", Value: s.Mismatched, Help: "memoized stacks that a full unwind contradicted: please report this"},
	}
	return append(out, loss.Counter{Name: "analyses_put_off", Value: u.Dropped(),
		Help: "processes whose mappings were not analysed at once because too many waited"},
		loss.Counter{Name: "unwinder_runs_missed", Value: u.Missed(), Help: "runs of the unwinder that the kernel skipped: their events are lost"})
}

// maxReasons bounds the reasons for incomplete stacks that are told.
const maxReasons = 100

// notes are the reasons for incomplete stacks, and what the memo did.
func (c *capturer) notes() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for reason, n := range c.reasons {
		out = append(out, fmt.Sprintf("%d different stacks: %s", n, reason))
	}
	if u := c.loader.Unwinder; u != nil {
		if pid, busy := u.Busy(); busy > slow {
			out = append(out, fmt.Sprintf("the analysis of process %d has taken %.0f s: stacks of new processes follow frame pointers meanwhile", pid, busy.Seconds()))
		}
		if s, _, err := u.Stats(); err == nil {
			out = append(out, fmt.Sprintf("stacks: %d from the memo, %d unwound, %d of them not fit for the memo", s.MemoHits, s.Unwound, s.NotKept))
			if s.Verified > 0 {
				out = append(out, fmt.Sprintf("verified: %d memoized stacks were unwound as well, %d differed", s.Verified, s.Mismatched))
			}
		}
	}
	return out
}

// close releases the unwinder. The probes must be off.
func (c *capturer) close() error {
	if u := c.loader.Unwinder; u != nil {
		return u.Close()
	}
	return nil
}

// notThere tells whether an error says that a process is no longer there.
func notThere(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unwind.ErrNotAnalyzed)
}
